"""Chooses the journal of a database file, reports how durable it is, and decides when to run checkpoints of the write-ahead
log.

SQLite 3.7.0 to 3.51.2 can lose commits in WAL mode when several connections write (the WAL reset); the fix is also in
3.50.7 and 3.44.6. On the other versions the file keeps a rollback journal. PERSIST and TRUNCATE with synchronous=FULL
survive a power loss; so does WAL with FULL on a version with the fix. PERSIST writes over the old journal instead of
cutting it off, so the file system has no sizes and blocks to write down: a commit takes a quarter less time.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

from perdure.errors import StoreError
from perdure.storage.contract import Durability

from .database_file import DatabaseFile
from .driver import BUSY, CANTOPEN, LOCKED, Connection, Driver

Journal = Literal["auto", "wal", "persist", "truncate", "as it is"]  # the last for files that are not ours
OLDEST = (3, 37, 0)  # STRICT tables
_SETTINGS = (
    "synchronous=FULL",
    "mmap_size=0",
    "cache_size=-3072",  # what is worked on lies close together; with five times as much nothing is faster
    "cache_spill=OFF",  # a spill in the middle of a transaction would need the exclusive lock
    "temp_store=MEMORY",
    "secure_delete=OFF",
    "wal_autocheckpoint=4000",
    "journal_size_limit=67108864",  # a persistent journal stays as long as the largest transaction made it
)
_log = logging.getLogger("perdure")
COMMITS = 40  # after which a checkpoint is due
QUIET = 0.005  # seconds without work before a checkpoint
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"  # it does not wait for locks; with another journal it does nothing


def wal_is_safe(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite has the fix of the WAL reset."""
    series, patch = version[:2], version[2]
    if series == (3, 51):
        return patch >= 3
    if series == (3, 50):
        return patch >= 7
    if series == (3, 44):
        return patch >= 6
    return version >= (3, 52, 0)


def mode_for(journal: Journal, version: tuple[int, int, int]) -> str:
    if journal == "auto":
        return "wal" if wal_is_safe(version) else "persist"
    return journal


class JournalKeeper:
    """Opens connections in the right journal mode, and switches the file back to it."""

    def __init__(self, file: DatabaseFile, driver: Driver, journal: Journal) -> None:
        if driver.version < OLDEST:
            have, need = (".".join(map(str, version)) for version in (driver.version, OLDEST))
            raise StoreError(f"SQLite {have} is too old, {need} is needed: upgrade it, or use sqlite+apsw://")
        self._file = file
        self._driver = driver
        self.wanted = mode_for(journal, driver.version)
        self.mode = self.wanted
        self._warned = False

    def connect(self) -> Connection:
        try:
            connection = self._driver.connect(str(self._file))
        except self._driver.error as error:
            if self._driver.code(error) == CANTOPEN:
                self._file.check()
            raise
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def check(self, connection: Connection) -> None:
        """Switch the file back if another program has switched its mode."""
        if self._file.in_memory or self.wanted == "as it is":
            return
        mode = connection.value("PRAGMA journal_mode")
        if mode != self.wanted and "wal" in (mode, self.wanted):
            mode = self._try_to_switch(connection, mode)
        elif mode != self.wanted:
            mode = connection.value(f"PRAGMA journal_mode={self.wanted}")
        self.mode = mode
        unsafe = mode == "wal" and not wal_is_safe(self._driver.version)
        if unsafe and not self._warned and self.wanted != "wal":
            _log.warning("%s was switched to WAL by another program: %s", self._file, self.durability().detail)
        self._warned = unsafe

    def read_mode(self, connection: Connection) -> None:
        """Read the mode of the file, and leave it. Modes other than WAL belong to a connection."""
        mode = connection.value("PRAGMA journal_mode")
        if "wal" in (mode, self.wanted):
            self.mode = mode

    def durability(self) -> Durability:
        version = ".".join(map(str, self._driver.version))
        if self._file.in_memory:
            return Durability("D", "SQLite in the memory of this process", "name a file, e.g. sqlite:///jobs.db")
        detail = f"SQLite {version}, journal {self.mode}, synchronous=FULL"
        if self.mode == "wal" and not wal_is_safe(self._driver.version):
            return Durability(
                "C",
                f"{detail}: this version can lose commits in WAL mode when several connections write",
                "use ?journal=auto and close other programs that keep the file in WAL mode, "
                "or SQLite 3.51.3 or newer (sqlite+apsw:// brings its own)",
            )
        if self.mode not in ("wal", "persist", "truncate"):
            return Durability("C", f"{detail}: this journal does not survive a power loss", "use ?journal=auto")
        return Durability("B", detail)

    def _set_up(self, connection: Connection) -> None:
        for pragma in _SETTINGS:
            connection.rows(f"PRAGMA {pragma}")
        if sys.platform == "darwin":
            connection.rows("PRAGMA fullfsync=ON")

    def _try_to_switch(self, connection: Connection, mode: str) -> str:
        """Leaving WAL fails while others have the file open; then it stays, and durability says so."""
        try:
            switched: str = connection.value(f"PRAGMA journal_mode={self.wanted}")
            return switched
        except self._driver.error as error:
            if self._driver.code(error) not in (BUSY, LOCKED):
                raise
            return mode


class Checkpoints:
    """Decides whether the writer uses its next pause for a checkpoint of the write-ahead log.

    While the log grows, every commit is slow: with each sync the file system also writes the new size of the log, which
    takes as long as the sync itself. After a checkpoint SQLite writes over the old log. By itself SQLite runs a checkpoint
    only when the log is long, and inside a commit. A store that is seldom busy would hardly ever get there.
    """

    def __init__(self, *, in_memory: bool) -> None:
        self._commits = 0
        self._in_memory = in_memory

    def count_commit(self) -> None:
        self._commits += 1

    @property
    def due(self) -> bool:
        return self._commits >= COMMITS and not self._in_memory

    def reset(self) -> None:
        self._commits = 0
