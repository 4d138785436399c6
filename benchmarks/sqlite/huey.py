"""Huey's SqliteHuey, with and without fsync."""

from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

from benchmarks.contender import POLL_SECONDS, SLOTS, Durability
from benchmarks.huey import HueyContender


class HueyNoSync(HueyContender):
    key = "huey"
    title = "Huey, fsync off"
    fsync: ClassVar[bool] = False
    consumer = {
        "initial_delay": POLL_SECONDS,
        "max_delay": POLL_SECONDS,
        "backoff": 1.0,
        "periodic": False,
        "check_worker_health": False,
    }
    settings = f"one worker thread (faster than 2 or 4; {SLOTS} for I/O); polls every {POLL_SECONDS * 1000:.0f} ms"
    durability = Durability(
        writes="no fsync (synchronous=OFF), WAL",
        power_loss="accepted jobs and even the file may be lost",
        worker_killed="the running job is lost: it is deleted before it runs",
        keeps="nothing",
    )

    @cached_property
    def queue(self) -> Any:
        return import_module("huey").SqliteHuey("bench", filename=str(self.place / "huey.db"), fsync=self.fsync)


class HueySync(HueyNoSync):
    key = "huey-fsync"
    title = "Huey, fsync on"
    fsync = True
    durability = Durability(
        writes="fsync at every commit (synchronous=FULL), WAL",
        power_loss="every accepted job survives until it is taken",
        worker_killed="the running job is lost: it is deleted before it runs",
        keeps="nothing",
    )
