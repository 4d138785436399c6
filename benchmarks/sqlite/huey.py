"""Huey's SqliteHuey, with and without fsync."""

import time
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

from benchmarks.contender import IO_SECONDS, POLL_SECONDS, SLOTS, BlockingContender, Durability, Mode
from benchmarks.probe import Probe


class HueyNoSync(BlockingContender):
    key = "huey"
    title = "Huey, fsync off"
    module = "huey"
    distribution = "huey"
    fsync: ClassVar[bool] = False
    modes = frozenset({"loop", "io"})
    settings = f"one worker thread (faster than 2 or 4; {SLOTS} for I/O); polls every {POLL_SECONDS * 1000:.0f} ms"
    durability = Durability(
        writes="no fsync (synchronous=OFF), WAL",
        power_loss="accepted jobs and even the file may be lost",
        worker_killed="the running job is lost: it is deleted before it runs",
        keeps="nothing",
    )

    @cached_property
    def _queue(self) -> Any:
        return import_module("huey").SqliteHuey("bench", filename=str(self.place / "huey.db"), fsync=self.fsync)

    @cached_property
    def _send_task(self) -> Any:
        return self._task(Probe(0), "loop")

    def _task(self, probe: Probe, mode: Mode) -> Any:
        def noop(text: str) -> None:
            if mode == "io":
                probe.begin()
                time.sleep(IO_SECONDS)
            probe(text)

        return self._queue.task(name="noop")(noop)

    def put(self, text: str) -> None:
        self._send_task(text)

    def waiting(self) -> int:
        return int(self._queue.storage.queue_size())

    def completed(self) -> int | None:
        return None

    def work(self, probe: Probe, mode: Mode) -> None:
        self._task(probe, mode)
        consumer = self._queue.create_consumer(
            workers=SLOTS if mode == "io" else 1,
            initial_delay=POLL_SECONDS,
            max_delay=POLL_SECONDS,
            backoff=1.0,
            periodic=False,
            check_worker_health=False,
        )
        consumer.start()
        probe.ready()
        probe.settle(self.completed)
        consumer.stop(graceful=True)


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
