"""Enqueueing jobs and waiting for them."""
