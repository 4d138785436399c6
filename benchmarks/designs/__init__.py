"""Schemas for a queue on PostgreSQL, side by side: which one stays fast, writes little, and does not rot.

Development only: `python -m benchmarks.designs`. Every design stores the full record with all the indexes that the features
need, and has the same two doors: `enqueue(ids, payloads, …)` and `exchange(finished, wanted, …)`, which finishes the last
batch and claims the next in one transaction. No handlers and no Perdure are in between: what is measured is the server and
a thin client.
"""
