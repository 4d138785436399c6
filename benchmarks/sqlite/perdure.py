"""Perdure on SQLite, with the standard library's driver and with apsw."""

from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from benchmarks.contender import Durability
from benchmarks.perdure import PerdureContender

from .journal import uses_wal

FILE = "jobs.db"


class PerdureSqlite(PerdureContender):
    scheme: ClassVar[str] = "sqlite"
    durability = Durability(
        writes="fsync at every commit (synchronous=FULL), journal chosen by SQLite's version",
        power_loss="every accepted job survives",
        worker_killed="its jobs run again when the lease ends",
        keeps="every job with its outcome",
    )

    @classmethod
    def observed(cls, place: Path) -> dict[str, float]:
        return {"wal": float(uses_wal(place / FILE))}

    def url(self) -> str:
        return f"{self.scheme}:///{self.place / FILE}"


class PerdureApsw(PerdureSqlite):
    key = "perdure-apsw"
    title = "Perdure (apsw)"
    scheme = "sqlite+apsw"

    @classmethod
    def version(cls) -> str | None:
        return super().version() if find_spec("apsw") else None
