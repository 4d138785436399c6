"""The runner: a worker process that has a supervisor.

It claims, runs and reports by itself. It writes what it holds to its status board, so that the supervisor can renew
leases whatever this interpreter is doing. It first imports the app and opens the store, however long that takes, sends
hello, and waits until the supervisor sends go. When its supervisor is gone it claims nothing more, renews by itself,
finishes what runs, and ends.
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
from ..control import WorkerControl
from ..host import WorkerHost, host_of
from ..leases.status_board import RunnerBoard
from ..open_store import retry_until_opened_or
from ..worker import control_of
from .channel import Channel, ChannelMessage

PULSE, PULSE_AT_REST = 0.25, 0.5
CONDITION_EVERY = 3  # pulses
YOUNG = 5_000  # new objects after which the garbage collector runs
FLUSH_WITHIN = 0.4  # seconds to report what has ended, before the supervisor kills this process


class Supervised:
    """The runner's connection to its supervisor: the channel, the status board, and the stderr that both share."""

    def __init__(self, descriptors: str) -> None:
        end, board, stderr = (int(number) for number in descriptors.split(":"))
        self._link = Channel(socket.socket(fileno=end))
        self._board = RunnerBoard(board)
        self._stderr = stderr
        os.close(board)  # the memory stays
        os.set_inheritable(stderr, False)
        os.set_inheritable(end, False)
        self.options = self._link.read_first()  # of the worker in this runner
        self._may_work = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leaves = False  # it ends as soon as its jobs have, however long they take
        self._worker: WorkerControl | None = None
        self._beats = 0
        self._store: Storage | None = None
        self._reported_transactions: frozenset[str] = frozenset()

    async def run(self, app: Any, **options: Any) -> None:
        """Work until the supervisor sends stop or leave."""
        _show_where_on_a_signal()
        self._beat()
        await self._link.listen(self._receive, self._on_supervisor_gone)
        host = host_of(app)
        worker = control_of(app.worker(**options)).with_board(self._board)
        alone = _why_alone(host)
        if alone is None:
            self._store = await retry_until_opened_or(self._stopping, host.storage, worker.id)
            if self._store is None:
                return  # the supervisor is gone, and nothing is open
        try:
            await self._work(worker, {"type": "hello", "url": app.url, "alone": alone})
        finally:
            await app.close()
            await self._link.close()

    async def _work(self, worker: WorkerControl, hello: ChannelMessage) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):  # until here they end the process at once: it holds nothing
            loop.add_signal_handler(number, self._stop)
        self._link.send(hello)
        await self._wait_for_turn()
        if self._stopping.is_set():
            return
        self._worker = worker
        await retry_until_opened_or(self._stopping, worker.start, worker.id)
        if not self._stopping.is_set():
            self._link.send({"type": "working"})
            await self._stopping.wait()
        await worker.stop(self._hurry, float("inf") if self._leaves else None)

    async def _wait_for_turn(self) -> None:
        waiting = [asyncio.create_task(event.wait()) for event in (self._may_work, self._stopping)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    # -- messages of the supervisor ------------------------------------------------------------------
    def _receive(self, message: ChannelMessage) -> None:
        match message["type"]:
            case "go":
                self._may_work.set()
            case "leave":
                self._leave()
            case "stop":
                self._stop()
            case "hurry":
                self._hurry.set()
            case "quiet":
                asyncio.get_running_loop().create_task(self._flush(), name="perdure flush")

    def _leave(self) -> None:
        if not self._stopping.is_set():
            self._leaves = True
            self._stopping.set()

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
        elif self._leaves:  # now it may take its grace, no longer
            self._leaves = False
            grace = self._worker.grace if self._worker is not None else 0.0
            asyncio.get_running_loop().call_later(grace, self._hurry.set)
        else:
            self._hurry.set()

    def _on_supervisor_gone(self) -> None:
        os.dup2(self._stderr, 2)  # nobody reads the pipe any more
        if not self._stopping.is_set():
            log.orphaned(os.getpid())
        self._leave()

    async def _flush(self) -> None:
        """This process is about to be killed: claim nothing more, and report what can be reported."""
        if self._worker is not None:
            await self._worker.flush(FLUSH_WITHIN)
        self._link.send({"type": "flushed"})

    def _beat(self) -> None:
        self._board.beat()
        self._beats += 1
        self._report_transactions()
        if self._worker is not None and self._beats % CONDITION_EVERY == 0:
            self._link.send({"type": "condition", "condition": self._worker.condition().summary()})
        # also without jobs it beats at least twice within the time after which the loop counts as blocked
        at_rest = self._worker is None or not self._worker.holds
        asyncio.get_running_loop().call_later(PULSE_AT_REST if at_rest else PULSE, self._beat)

    def _report_transactions(self) -> None:
        """The supervisor must know which transactions the server would keep open, in case this process dies."""
        if (
            self._store is not None
            and (open_transactions := self._store.open_transactions()) != self._reported_transactions
        ):
            self._reported_transactions = open_transactions
            self._link.send({"type": "transactions", "names": sorted(open_transactions)})


def _why_alone(host: WorkerHost) -> str | None:
    """Why other processes cannot share this app's store, if so."""
    if host.in_memory:
        return f"the store {host.app.url} lives in one process"
    if host.app.clock is not None:
        return "the app has a clock of its own, which lives in one process"
    return None


def _show_where_on_a_signal() -> None:
    """Let a crash, and SIGUSR1, write the stack of each thread to stderr. That needs no interpreter lock, so it works even
    while a handler holds it."""
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
