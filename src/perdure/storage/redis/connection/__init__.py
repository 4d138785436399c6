"""The connections of a store: they send scripts and commands, try again after errors, and receive signals."""
