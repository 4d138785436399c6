"""Enqueueing inside the caller's own database transaction (`connection=`)."""
