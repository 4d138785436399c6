"""Perdure on MongoDB."""

from importlib.util import find_spec

from benchmarks.contender import Durability
from benchmarks.perdure import PerdureContender

from .place import address


class PerdureMongo(PerdureContender):
    durability = Durability(
        writes="a transaction a batch, in the journals of a majority",
        power_loss="every accepted job survives",
        worker_killed="its jobs run again when the lease ends",
        keeps="every job with its outcome",
    )

    @classmethod
    def version(cls) -> str | None:
        return super().version() if find_spec("pymongo") else None

    def url(self) -> str:
        return address(self.place)
