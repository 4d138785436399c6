"""Limits: which parked jobs may start."""
