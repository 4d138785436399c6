"""Perdure on Valkey, with a file that is synced once a second, and with one that is synced before every answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from benchmarks.contender import Durability
from benchmarks.perdure import PerdureContender

from .peer import POWER_LOSS, WRITES
from .place import address, sync_always

KILLED = "its jobs run again when the lease ends"
KEEPS = "every job with its outcome"


class PerdureRedis(PerdureContender):
    durability = Durability(writes=WRITES, power_loss=POWER_LOSS, worker_killed=KILLED, keeps=KEEPS)

    @classmethod
    def version(cls) -> str | None:
        return super().version() if find_spec("redis") else None

    @classmethod
    def why_missing(cls) -> str:
        return "it needs the driver: perdure[redis]"

    def url(self) -> str:
        return address(self.place)


class PerdureAlways(PerdureRedis):
    key = "perdure-always"
    title = "Perdure, synced always"
    durability = Durability(
        writes="append-only file, synced before every answer",
        power_loss="every accepted job survives",
        worker_killed=KILLED,
        keeps=KEEPS,
    )

    @asynccontextmanager
    async def opened(self, *, for_work: bool = False) -> AsyncIterator[Any]:
        sync_always(self.place)
        async with super().opened(for_work=for_work) as app:
            yield app
