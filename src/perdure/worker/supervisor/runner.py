"""The runner: a worker process that has a supervisor.

It claims, runs and reports by itself. What it holds stands on its board, so that its supervisor can renew it whatever this
interpreter is doing. It starts by importing the app and opening the store, however long that takes, says hello, and waits
for its turn. When its supervisor is gone it claims nothing more, renews by itself, finishes what runs, and ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import socket
from typing import Any

from ...observe import log
from ...storage.contract import Storage
from ..leases.status_board import RunnerBoard
from ..open_store import retry_until_opened_or
from ..worker import Worker
from .channel import Channel, Word

PULSE, PULSE_AT_REST = 0.25, 0.5
TOLD_EVERY = 3  # pulses
YOUNG = 5_000  # objects that the garbage collector lets come up before it looks at them
FLUSH_WITHIN = 0.4  # seconds to tell the store what has ended, before the supervisor kills us


class Supervised:
    """What a runner has of its supervisor: the line, the board, and the stderr that both share."""

    def __init__(self, descriptors: str) -> None:
        end, board, stderr = (int(number) for number in descriptors.split(":"))
        self._link = Channel(socket.socket(fileno=end))
        self._board = RunnerBoard(board)
        self._stderr = stderr
        os.close(board)  # the memory stays
        os.set_inheritable(stderr, False)
        os.set_inheritable(end, False)
        self.options = self._link.first()  # what this runner is to do
        self._turn = asyncio.Event()
        self._told = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leaves = False  # it may take as long as its jobs do
        self._worker: Worker | None = None
        self._beats = 0
        self._store: Storage | None = None
        self._told_of: frozenset[str] = frozenset()

    async def run(self, app: Any, **options: Any) -> None:
        """Work until told to stop, or to leave."""
        _show_where_on_a_signal()
        self._beat()
        await self._link.listen(self._heard, self._orphaned)
        worker = app.worker(**options)
        worker._board = self._board
        alone = _why_alone(app)
        if alone is None:
            self._store = await retry_until_opened_or(self._told, app._runtime.storage, worker.id)
            if self._store is None:
                return  # our supervisor is gone, and nothing is open
        try:
            await self._work(worker, {"word": "hello", "url": app.url, "alone": alone})
        finally:
            await app.close()
            await self._link.close()

    async def _work(self, worker: Worker, hello: Word) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):  # until here they end the process at once: it holds nothing
            loop.add_signal_handler(number, self._stop)
        self._link.say(hello)
        await self._wait_for_turn()
        if self._told.is_set():
            return
        self._worker = worker
        await retry_until_opened_or(self._told, worker.start, worker.id)
        if not self._told.is_set():
            self._link.say({"word": "working"})
            await self._told.wait()
        await worker._stop(self._hurry, float("inf") if self._leaves else None)

    async def _wait_for_turn(self) -> None:
        waiting = [asyncio.create_task(event.wait()) for event in (self._turn, self._told)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    # -- what the supervisor says --------------------------------------------------------------------
    def _heard(self, word: Word) -> None:
        match word["word"]:
            case "go":
                self._turn.set()
            case "leave":
                self._leave()
            case "stop":
                self._stop()
            case "hurry":
                self._hurry.set()
            case "quiet":
                asyncio.get_running_loop().create_task(self._flush(), name="perdure flush")

    def _leave(self) -> None:
        if not self._told.is_set():
            self._leaves = True
            self._told.set()

    def _stop(self) -> None:
        if not self._told.is_set():
            self._told.set()
        elif self._leaves:  # now it may take its grace, no longer
            self._leaves = False
            grace = self._worker._grace if self._worker is not None else 0.0
            asyncio.get_running_loop().call_later(grace, self._hurry.set)
        else:
            self._hurry.set()

    def _orphaned(self) -> None:
        os.dup2(self._stderr, 2)  # whoever read what we say there is gone
        if not self._told.is_set():
            log.orphaned(os.getpid())
        self._leave()

    async def _flush(self) -> None:
        """We are about to be killed: claim nothing more, and say what can be said."""
        if self._worker is not None:
            await self._worker._flush(FLUSH_WITHIN)
        self._link.say({"word": "flushed"})

    def _beat(self) -> None:
        self._board.beat()
        self._beats += 1
        self._tell_leaves()
        if self._worker is not None and self._beats % TOLD_EVERY == 0:
            self._link.say({"word": "condition", "told": self._worker._condition().told()})
        # at rest too it beats twice as often as a supervisor's patience with a blocked loop lasts
        at_rest = self._worker is None or not self._worker._holds
        asyncio.get_running_loop().call_later(PULSE_AT_REST if at_rest else PULSE, self._beat)

    def _tell_leaves(self) -> None:
        """Our supervisor must know before we die what the server would keep open."""
        if self._store is not None and (leaves := self._store.open_transactions()) != self._told_of:
            self._told_of = leaves
            self._link.say({"word": "leaves", "names": sorted(leaves)})


def _why_alone(app: Any) -> str | None:
    """Why other processes cannot share this app's store, if so."""
    if app._runtime.loops.in_memory:
        return f"the store {app.url} lives in one process"
    if app.clock is not None:
        return "the app has a clock of its own, which lives in one process"
    return None


def _show_where_on_a_signal() -> None:
    """A crash, and SIGUSR1, write to stderr where each thread is: without the interpreter's lock, so even when a handler
    holds it."""
    if not faulthandler.is_enabled():
        faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)


def tune_collector() -> None:
    """Make the garbage collector run less often, in a process of `perdure worker`. Call it when everything is imported.

    What is loaded by now stays as long as the process does, so the collector need not go through it again and again. A
    worker holds a thousand jobs for some milliseconds, and with Python's 700 objects the collector would go through all of
    them several times in that while.

    The switch interval stays Python's 5 ms: a shorter one gains nothing in a drain, and a `def` handler that computes
    takes longer, because the loop and the other threads interrupt it more often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
