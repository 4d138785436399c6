"""Celery with two of its pools: prefork, which is what its command starts, and threads."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from importlib import import_module
from threading import Thread
from typing import Any, ClassVar

from benchmarks.contender import SLOTS, BlockingContender, Durability, Mode, blocking_handler
from benchmarks.probe import Probe

from .forked import told_by_children
from .peer import POWER_LOSS, WRITES, counting
from .place import address

QUEUE = "celery"
CORES = os.cpu_count() or 1


class CeleryThreads(BlockingContender):
    key = "celery-threads"
    title = "Celery, threads"
    module = "celery"
    distribution = "celery"
    share = 0.1
    modes = frozenset({"loop", "io"})
    pool: ClassVar[str] = "threads"
    concurrency: ClassVar[int] = SLOTS
    settings = f"pool of {SLOTS} threads, no result backend, everything else as it comes"
    durability = Durability(
        writes=WRITES,
        power_loss=POWER_LOSS,
        worker_killed="the running jobs are lost: they are acknowledged before they run; reserved ones come back in an hour",
        keeps="nothing",
    )

    @cached_property
    def _app(self) -> Any:
        app = import_module("celery").Celery("bench", broker=address(self.place), set_as_current=True)
        app.conf.worker_hijack_root_logger = False
        return app

    @cached_property
    def _send_task(self) -> Any:
        return self._task(lambda text: None)

    def _task(self, handle: Callable[[str], None]) -> Any:
        def noop(text: str) -> None:
            handle(text)

        return self._app.task(name="noop")(noop)

    def put(self, text: str) -> None:
        self._send_task.delay(text)

    def waiting(self) -> int:
        with counting(self.place) as client:
            return int(client.llen(QUEUE))

    def completed(self) -> int | None:
        return None

    def work(self, probe: Probe, mode: Mode) -> None:
        with self._heard(probe, mode) as handle:
            self._task(handle)
            worker = self._app.WorkController(
                pool=self.pool,
                concurrency=self.concurrency,
                loglevel="ERROR",
                ready_callback=lambda consumer: probe.ready(),
            )
            Thread(target=self._stop_after, args=(probe,), daemon=True).start()
            worker.start()

    def _heard(self, probe: Probe, mode: Mode) -> Any:
        """What a handler calls, for as long as the worker runs."""
        return nullcontext(blocking_handler(probe, mode))

    def _stop_after(self, probe: Probe) -> None:
        probe.settle(self.completed)
        import_module("celery.worker.state").should_stop = os.EX_OK


class CeleryPrefork(CeleryThreads):
    key = "celery-prefork"
    title = "Celery, prefork"
    modes = frozenset({"loop"})
    pool = "prefork"
    concurrency = CORES
    settings = "a process for each core, as its command has, no result backend, everything else as it comes"

    def _heard(self, probe: Probe, mode: Mode) -> Any:
        return told_by_children(probe)
