"""Huey's RedisHuey."""

from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks.contender import SLOTS, Durability
from benchmarks.huey import HueyContender

from .peer import POWER_LOSS, WRITES
from .place import address


class Huey(HueyContender):
    key = "huey"
    title = "Huey"
    share = 0.25
    settings = f"RedisHuey, one worker thread, as it comes ({SLOTS} for I/O); the queue is awaited, not polled"
    durability = Durability(
        writes=WRITES,
        power_loss=POWER_LOSS,
        worker_killed="the running job is lost: it is taken off before it runs",
        keeps="nothing",
    )

    @cached_property
    def queue(self) -> Any:
        return import_module("huey").RedisHuey("bench", url=address(self.place))
