"""Reports what happens to the jobs of a runner that died.

Its status board says what it held and which handlers had started. If exactly one handler ran, its job is charged with the
loss. If several ran, none is charged, and all are suspects. Jobs that had not started, were over already or ran in a
child process go back free of charge. If the supervisor itself killed the runner, it knows why: jobs over their timeout
fail because of that, the others go back free.

Every report is guarded by the hold, so one that arrives late or twice has no effect. A claim that was under way when the
runner died may take jobs after that. The supervisor asks for them by the claim's stamp several times, and hands them
back.
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

ASKED_AFTER = (0.0, 1.0, 5.0, 30.0)  # seconds after which it asks for strays; upkeep brings back what appears later
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds, while the store is out of reach

OpenStore = Callable[[], Awaitable[Storage]]


@dataclass(frozen=True)
class Death:
    """How a runner died, and what it held."""

    worker: str
    message: str
    lines: str
    at: int
    seen: Sequence[Seen]
    claims: Sequence[int] = ()
    given_up: int = 0  # threads that went on although their jobs were over
    overdue: frozenset[Hold] = frozenset()  # it was killed because of these
    blameless: bool = False  # it was killed for a reason that is not one of its jobs
    open_transactions: Collection[str] = ()  # transactions that it left open on the server


def report_on(death: Death, seen: Seen) -> Report:
    """The report on one of its jobs."""
    if seen.hold in death.overdue:
        message = f"the attempt took longer than its timeout of {seen.timeout / 1_000_000:g} s and did not stop"
        overrun = _fault(death, seen, f"{message}; {death.message}", "TimeoutError")
        return Failed(overrun, seen.retries, started_at=seen.started_at)
    if seen.status != STARTED or death.overdue or death.blameless:
        return HandedBack("handed back after its runner was gone")
    suspects = sum(each.status == STARTED for each in death.seen) + death.given_up
    return RunnerLost(_fault(death, seen, death.message), suspects == 1, suspects > 1, seen.started_at)


def change_of(death: Death, seen: Seen, record: Record) -> Change | None:
    """The change for one of its jobs, if the record still has this hold."""
    if record.stamp != seen.hold.stamp or record.attempt != seen.hold.attempt:
        return None
    try:
        return decide(record, Stopped() if record.state in FINAL else report_on(death, seen), draw=random.random())
    except IllegalMove:
        return None


async def report(open_store: OpenStore, death: Death, stopping: asyncio.Event) -> None:
    """Report a death, however long the store is out of reach, then hand back strays. Ends when the supervisor stops."""
    began = asyncio.get_running_loop().time()
    await _repeat_until_stored(lambda: _report_jobs(open_store, death), stopping)
    if not death.claims:
        return
    for after in ASKED_AFTER:
        await sleep(stopping, began + after - asyncio.get_running_loop().time())
        await _repeat_until_stored(lambda: _hand_back_strays(open_store, death), stopping)
        if stopping.is_set():
            return


async def _report_jobs(open_store: OpenStore, death: Death) -> None:
    store = await open_store()
    if death.open_transactions:
        await store.abort_transactions(death.open_transactions)
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


async def _repeat_until_stored(send: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> None:
    failed = 0
    while True:
        try:
            await send()
            return
        except Exception as error:
            pause = PAUSES[min(failed, len(PAUSES) - 1)]
            if not failed:
                log.store_out_of_reach("report of a lost runner", error)
            failed += 1
        if stopping.is_set() and failed > len(PAUSES):
            return  # the leases will end
        await asyncio.sleep(pause)


def _fault(death: Death, seen: Seen, message: str, kind: str = LOST) -> Fault:
    return fault(seen.hold.attempt, death.worker, seen.started_at, death.at, message, death.lines, kind)
