"""taskito: a scheduler in Rust, handlers in Python."""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from threading import Thread
from typing import Any

from benchmarks.contender import IO_SECONDS, SLOTS, BlockingContender, Durability, Mode
from benchmarks.probe import Probe

BATCH = 100


class Taskito(BlockingContender):
    key = "taskito"
    title = "taskito"
    module = "taskito"
    distribution = "taskito"
    ways = frozenset({"single", "bulk", "concurrent"})
    modes = frozenset({"loop", "io"})
    blocking_handlers = False
    share = 0.15
    settings = (
        f"async handlers (twice as fast as blocking ones), {SLOTS} workers, scheduler batches of {BATCH}, "
        "poll 1 ms, push dispatch; 16 workers or batches of 500 are no different"
    )
    durability = Durability(
        writes="fsync only at checkpoints (synchronous=NORMAL), WAL",
        power_loss="the last commits may be lost",
        worker_killed="its jobs run again after the reaper's delay; a late result of the old run is accepted",
        keeps="every job with its result",
    )

    @cached_property
    def _queue(self) -> Any:
        return import_module("taskito").Queue(
            db_path=str(self.place / "taskito.db"),
            workers=SLOTS,
            async_concurrency=SLOTS,
            scheduler_poll_interval_ms=1,
            scheduler_batch_size=BATCH,
            push_dispatch=True,
        )

    @cached_property
    def _send_task(self) -> Any:
        return self._task(Probe(0), "loop")

    def _task(self, probe: Probe, mode: Mode) -> Any:
        async def noop(text: str) -> None:
            if mode == "io":
                probe.begin()
                await asyncio.sleep(IO_SECONDS)
            probe(text)

        return self._queue.task(name="noop")(noop)

    def put(self, text: str) -> None:
        self._send_task.delay(text)

    def put_many(self, texts: Sequence[str]) -> None:
        self._queue.enqueue_many(self._send_task.name, [(text,) for text in texts])

    def waiting(self) -> int:
        return int(self._queue.stats()["pending"])

    def completed(self) -> int | None:
        return int(self._queue.stats()["completed"])

    def work(self, probe: Probe, mode: Mode) -> None:
        self._task(probe, mode)
        Thread(target=self._stop_when_done, args=(probe,), daemon=True).start()
        probe.ready()
        self._queue.run_worker()

    def _stop_when_done(self, probe: Probe) -> None:
        probe.settle(self.completed)
        self._queue.shutdown()
