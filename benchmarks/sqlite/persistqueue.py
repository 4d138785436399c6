"""persist-queue's SQLiteAckQueue: get and ack; the loop around them is the user's."""

import time
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks.contender import POLL_SECONDS, BlockingContender, Durability, Mode
from benchmarks.probe import Probe


class PersistQueue(BlockingContender):
    key = "persist-queue"
    title = "persist-queue (ack)"
    module = "persistqueue"
    distribution = "persist-queue"
    # Two commits with fsync for each job: a tenth is enough to know the rate.
    share = 0.1
    settings = f"SQLiteAckQueue(multithreading=True); polls every {POLL_SECONDS * 1000:.0f} ms"
    durability = Durability(
        writes="fsync at every commit (synchronous=FULL), WAL",
        power_loss="every accepted job survives",
        worker_killed="the running job comes back when the queue is opened anew",
        keeps="every item with its status",
    )

    @cached_property
    def _queue(self) -> Any:
        module = import_module("persistqueue")
        # Resuming is for one process alone: a second opener would hand out what the first one runs.
        return module.SQLiteAckQueue(str(self.place / "persist"), multithreading=True, auto_resume=False, timeout=30)

    def put(self, text: str) -> None:
        self._queue.put(text)

    def waiting(self) -> int:
        return int(self._queue._count())

    def completed(self) -> int | None:
        return int(self._queue.acked_count())

    def work(self, probe: Probe, mode: Mode) -> None:
        empty = import_module("persistqueue").Empty
        queue = self._queue
        probe.ready()
        while not probe.finished.is_set():
            try:
                item = queue.get(block=False, raw=True)
            except empty:
                time.sleep(POLL_SECONDS)
                continue
            probe(item["data"])
            queue.ack(id=item["pqid"])
        probe.settle(self.completed)
