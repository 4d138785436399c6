"""Upkeep: promotion, pruning, inspection of stored rows."""
