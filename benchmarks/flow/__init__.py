"""What waits for jobs and what waits for time: chains, fans and schedules, on every store. Only Perdure takes part: its
peers have no such thing, or one without the promise that each step happens once.

A new measure is a coroutine function of (url, size) in a module of its own, and one line in `measures.py`. It counts for
itself what was done and raises `Wrong` when something was lost or done twice.
"""
