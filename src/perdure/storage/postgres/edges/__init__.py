"""Edges between jobs that depend on each other."""
