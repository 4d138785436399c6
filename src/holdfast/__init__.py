"""Holdfast: a durable job queue on the database you already have."""
