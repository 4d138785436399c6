"""Watching the worker itself: blocked loops, silent claims, crashes, probes and throughput."""
