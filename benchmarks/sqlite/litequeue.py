"""litequeue: a table with pop and done; the loop around them is the user's."""

import time
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks.contender import POLL_SECONDS, BlockingContender, Durability, Mode
from benchmarks.probe import Probe


class Litequeue(BlockingContender):
    key = "litequeue"
    title = "litequeue"
    module = "litequeue"
    distribution = "litequeue"
    ways = frozenset({"single", "bulk", "concurrent"})
    # A pop sorts every ready message: the longer the backlog, the slower each job.
    share = 0.1
    settings = f"bulk = puts in one transaction(); polls every {POLL_SECONDS * 1000:.0f} ms"
    durability = Durability(
        writes="fsync only at checkpoints (synchronous=NORMAL), WAL",
        power_loss="the last commits may be lost",
        worker_killed="the running job stays locked until somebody retries it by hand",
        keeps="every message with its status",
    )

    @cached_property
    def _queue(self) -> Any:
        return import_module("litequeue").LiteQueue(str(self.place / "lite.db"), timeout=30)

    def put(self, text: str) -> None:
        self._queue.put(text)

    def put_many(self, texts: Sequence[str]) -> None:
        with self._queue.transaction():
            for text in texts:
                self._queue.put(text)

    def waiting(self) -> int:
        return int(self._queue.qsize())

    def completed(self) -> int | None:
        done = import_module("litequeue").MessageStatus.DONE.value
        return int(self._queue.conn.execute("select count(*) from Queue where status = ?", (done,)).fetchone()[0])

    def work(self, probe: Probe, mode: Mode) -> None:
        probe.ready()
        while not probe.finished.is_set():
            message = self._queue.pop()
            if message is None:
                time.sleep(POLL_SECONDS)
                continue
            probe(message.data)
            self._queue.done(message.message_id)
        probe.settle(self.completed)
