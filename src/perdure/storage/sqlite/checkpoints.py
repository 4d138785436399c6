"""Checkpoints of the write-ahead log while nobody waits for the writer.

A log that grows makes every commit dear: the file system has to note its new size with each sync, which takes as long as
the sync itself. One that was brought into the database begins anew and is written over. SQLite does that by itself
only when the log is long, in the middle of somebody's commit; a store that is seldom busy would hardly ever come to it.
"""

from __future__ import annotations

COMMITS = 40  # after which the log is brought into the database
QUIET = 0.005  # seconds without work before that
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # which waits for nobody; with another journal it does nothing


class Checkpoints:
    """Whether the next pause of the writer is to be used for one."""

    def __init__(self, *, in_memory: bool) -> None:
        self._commits = 0
        self._in_memory = in_memory

    def committed(self) -> None:
        self._commits += 1

    @property
    def due(self) -> bool:
        return self._commits >= COMMITS and not self._in_memory

    def done(self) -> None:
        self._commits = 0
