"""Rows as records, listings, and transfers."""
