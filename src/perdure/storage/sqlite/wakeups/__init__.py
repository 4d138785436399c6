"""Signals between the processes that use a file."""
