"""Enqueues, and the changes of jobs."""
