"""Edges between jobs, and what follows when a parent ends."""
