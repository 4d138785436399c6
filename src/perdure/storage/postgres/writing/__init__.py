"""Writes: enqueue, changes, exchanges."""
