"""Perdure on PostgreSQL."""

from benchmarks.contender import Durability
from benchmarks.perdure import PerdureContender

from .place import address


class PerdurePostgres(PerdureContender):
    durability = Durability(
        writes="fsync at every commit",
        power_loss="every accepted job survives",
        worker_killed="its jobs run again when the lease ends",
        keeps="every job with its outcome",
    )

    @classmethod
    def version(cls) -> str | None:
        """None in a version that has no PostgreSQL store yet."""
        version = super().version()
        if version is None:
            return None
        from perdure import StoreError
        from perdure.storage.urls import parse

        try:
            parse("postgresql://127.0.0.1/bench")
        except StoreError:
            return None
        return version

    def url(self) -> str:
        return address(self.place)
