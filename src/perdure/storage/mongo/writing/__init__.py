"""Enqueueing, applying changes, and the exchange that does both with a claim."""
