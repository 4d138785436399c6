"""RQ with the worker that its command starts: every job runs in a process that is forked for it."""

import os
import signal
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from threading import Thread
from typing import Any

from benchmarks.contender import BlockingContender, Durability, Mode
from benchmarks.probe import Probe

from .forked import told_by_children
from .peer import POWER_LOSS, WRITES, counting
from .place import address

QUEUE = "bench"
# RQ finds a handler by the path of its module.
NAME = f"{__name__}.noop"
_tell: Callable[[str], None] | None = None


def noop(text: str) -> None:
    assert _tell is not None
    _tell(text)


class Rq(BlockingContender):
    key = "rq"
    title = "RQ"
    module = "rq"
    distribution = "rq"
    # A fork for each job.
    share = 0.02
    ways = frozenset({"single", "bulk", "concurrent"})
    settings = "Worker, which forks for each job; enqueue_many for bulk; everything else as it comes"
    durability = Durability(
        writes=WRITES,
        power_loss=POWER_LOSS,
        worker_killed="its job is marked as failed when it is found abandoned",
        keeps="every job with its result, for 500 s",
    )

    @cached_property
    def _queue(self) -> Any:
        connection = import_module("redis").Redis.from_url(address(self.place))
        return import_module("rq").Queue(QUEUE, connection=connection)

    def put(self, text: str) -> None:
        self._queue.enqueue(NAME, text)

    def put_many(self, texts: Sequence[str]) -> None:
        self._queue.enqueue_many([self._queue.prepare_data(NAME, (text,)) for text in texts])

    def waiting(self) -> int:
        with counting(self.place) as client:
            return int(client.llen(f"rq:queue:{QUEUE}"))

    def completed(self) -> int | None:
        with counting(self.place) as client:
            return int(client.zcard(f"rq:finished:{QUEUE}"))

    def work(self, probe: Probe, mode: Mode) -> None:
        """In the main thread, which is where RQ hears the signal to stop."""
        global _tell
        with told_by_children(probe) as _tell:
            worker = import_module("rq").Worker([self._queue], connection=self._queue.connection)
            Thread(target=self._stop_after, args=(probe,), daemon=True).start()
            probe.ready()
            worker.work(logging_level="ERROR")

    def _stop_after(self, probe: Probe) -> None:
        probe.settle(self.completed)
        os.kill(os.getpid(), signal.SIGTERM)
