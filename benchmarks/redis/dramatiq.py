"""Dramatiq with its Redis broker."""

from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks.contender import SLOTS, BlockingContender, Durability, Mode, blocking_handler
from benchmarks.probe import Probe

from .peer import POWER_LOSS, WRITES, counting
from .place import address

THREADS = 8


class Dramatiq(BlockingContender):
    key = "dramatiq"
    title = "Dramatiq"
    module = "dramatiq"
    distribution = "dramatiq"
    share = 0.25
    modes = frozenset({"loop", "io"})
    settings = f"{THREADS} threads a process, as its command has ({SLOTS} for I/O), everything else as it comes"
    durability = Durability(
        writes=WRITES,
        power_loss=POWER_LOSS,
        worker_killed="its jobs are given out again when its heartbeat is a minute old",
        keeps="nothing",
    )

    @cached_property
    def _broker(self) -> Any:
        broker = import_module("dramatiq.brokers.redis").RedisBroker(url=address(self.place))
        import_module("dramatiq").set_broker(broker)
        return broker

    @cached_property
    def _send_actor(self) -> Any:
        return self._actor(Probe(0), "loop")

    def _actor(self, probe: Probe, mode: Mode) -> Any:
        handle = blocking_handler(probe, mode)

        def noop(text: str) -> None:
            handle(text)

        return import_module("dramatiq").actor(noop, broker=self._broker, actor_name="noop")

    def put(self, text: str) -> None:
        self._send_actor.send(text)

    def waiting(self) -> int:
        with counting(self.place) as client:
            return int(client.llen("dramatiq:default"))

    def completed(self) -> int | None:
        return None

    def work(self, probe: Probe, mode: Mode) -> None:
        self._actor(probe, mode)
        worker = import_module("dramatiq").Worker(self._broker, worker_threads=SLOTS if mode == "io" else THREADS)
        worker.start()
        probe.ready()
        probe.settle(self.completed)
        worker.stop()
