"""Upkeep, and rows that cannot be read."""
