"""What is said about the jobs of a runner that is gone.

Its board tells what it held and what had begun. Exactly one handler at work: it is charged with the loss. Several: none is,
all are suspects. What had not begun, was over already or ran in a child process goes back free of charge. If the supervisor
itself killed the runner, it knows why: those who overran their timeout fail by it, the others go back free.

Every word is guarded by the hold, so one that comes late or twice does nothing. A claim that was under way when the runner
died may take jobs after that; they are asked for by its stamp, again and again for a while, and go back free.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from ...core.job import FINAL
from ...core.lifecycle import Change, Failed, HandedBack, Report, RunnerLost, Stopped, decide
from ...core.record import Fault, Hold, Record
from ...errors import IllegalMove
from ...flow.compensation import add_undos
from ...observe import log
from ...storage.contract import Storage
from ..claiming.unanswered_claims import hand_back_strays
from ..health.crash_evidence import LOST, fault
from ..leases.status_board import STARTED, Seen
from ..service import sleep

ASKED_AFTER = (0.0, 1.0, 5.0, 30.0)  # seconds at which strays are asked for; what comes later, its lease brings back
AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0)  # pauses while the store is out of reach

OpenStore = Callable[[], Awaitable[Storage]]


@dataclass(frozen=True)
class Death:
    """A runner is gone, and what it left."""

    worker: str
    message: str
    lines: str
    at: int
    seen: Sequence[Seen]
    claims: Sequence[int] = ()
    given_up: int = 0  # threads that ran on beside these
    overdue: frozenset[Hold] = frozenset()  # it was killed because of these
    blameless: bool = False  # it was killed, and none of its jobs is to blame
    leaves: Collection[str] = ()  # what it has left open on the server


def said_of(death: Death, seen: Seen) -> Report:
    """What follows for one of its jobs."""
    if seen.hold in death.overdue:
        message = f"the attempt took longer than its timeout of {seen.timeout / 1_000_000:g} s and did not stop"
        told = _fault(death, seen, f"{message}; {death.message}", "TimeoutError")
        return Failed(told, seen.retries, started_at=seen.started_at)
    if seen.status != STARTED or death.overdue or death.blameless:
        return HandedBack("handed back after its runner was gone")
    suspects = sum(each.status == STARTED for each in death.seen) + death.given_up
    return RunnerLost(_fault(death, seen, death.message), suspects == 1, suspects > 1, seen.started_at)


def change_of(death: Death, seen: Seen, record: Record) -> Change | None:
    """The change, if the hold still stands as far as one can see."""
    if record.stamp != seen.hold.stamp or record.attempt != seen.hold.attempt:
        return None
    try:
        return decide(record, Stopped() if record.state in FINAL else said_of(death, seen), draw=random.random())
    except IllegalMove:
        return None


async def report(open_store: OpenStore, death: Death, stopping: asyncio.Event) -> None:
    """Say it, however long the store is out of reach, and look for strays; at the latest when the supervisor stops."""
    began = asyncio.get_running_loop().time()
    await _until_said(lambda: _say(open_store, death), stopping)
    if not death.claims:
        return
    for after in ASKED_AFTER:
        await sleep(stopping, began + after - asyncio.get_running_loop().time())
        await _until_said(lambda: _hand_back_strays(open_store, death), stopping)
        if stopping.is_set():
            return


async def _say(open_store: OpenStore, death: Death) -> None:
    store = await open_store()
    if death.leaves:
        await store.abort_transactions(death.leaves)
    for start in range(0, len(death.seen), store.chunk):
        some = death.seen[start : start + store.chunk]
        records = await store.get([seen.hold.id for seen in some])
        pairs = [
            (record, change)
            for seen, record in zip(some, records, strict=True)
            if record is not None and (change := change_of(death, seen, record)) is not None
        ]
        verdicts = await store.apply(await add_undos(store, [change for _, change in pairs])) if pairs else []
        for (record, change), verdict in zip(pairs, verdicts, strict=True):
            if verdict.accepted and not verdict.repeated and change.state is not None:
                log.brought_back(record, change, death.worker)


async def _hand_back_strays(open_store: OpenStore, death: Death) -> None:
    store = await open_store()
    await hand_back_strays(store, death.worker, death.claims, "handed back after its runner was gone")


async def _until_said(word: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> None:
    failed = 0
    while True:
        try:
            await word()
            return
        except Exception as error:
            pause = AGAIN[min(failed, len(AGAIN) - 1)]
            if not failed:
                log.store_out_of_reach("report of a lost runner", error)
            failed += 1
        if stopping.is_set() and failed > len(AGAIN):
            return  # the leases will end
        await asyncio.sleep(pause)


def _fault(death: Death, seen: Seen, message: str, kind: str = LOST) -> Fault:
    return fault(seen.hold.attempt, death.worker, seen.started_at, death.at, message, death.lines, kind)
