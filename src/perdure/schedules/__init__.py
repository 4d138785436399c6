"""Schedules: recurring rules that enqueue."""
