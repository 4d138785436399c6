"""Upkeep: promote, reap, expire, prune. Any worker does it; each step is guarded, so many may at once."""
