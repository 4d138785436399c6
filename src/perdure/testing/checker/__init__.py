"""A judge of recorded histories. It shares no code with the rest of Perdure: it reads what programs wrote down and what the
store held in the end, and names the promises that were broken.

The invariants have numbers, from I1 (nothing is lost) to I14 (a rollback leaves nothing).
"""

from __future__ import annotations

from .check import BrokenPromise, check, violations
from .history import Entry, History, counts, read_events

__all__ = ["BrokenPromise", "Entry", "History", "check", "counts", "read_events", "violations"]
