"""Reads: records, listings, transfer."""
