"""A supervisor and its runners: see `supervisor`."""
