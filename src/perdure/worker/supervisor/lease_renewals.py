"""Renews the leases of what the runners of a supervisor hold, every third of a lease, on a connection of its own.

So user code that holds the interpreter's lock or blocks the loop of a runner cannot make a lease end. It does not renew
jobs that a runner with a blocked loop has not started: other workers can have them. Nor the jobs of a runner that was
stopped by a signal: if nobody continues it, its leases end. If a renewal is refused, the runner decides what that means,
because it knows whether the job has just ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ...core.clock import boottime
from ...core.record import Hold
from ...storage.contract import Started, Storage
from ..claiming.answer_timeout import AnswerTimeout
from ..leases.status_board import CLAIMED, Seen
from ..service import sleep
from .loss_reports import OpenStore
from .runner_process import SILENT_FOR, RunnerProcess

LONGEST_SLEEP = 0.5


class Renewals:
    """A service of the supervisor."""

    def __init__(self, open_store: OpenStore, members: Callable[[], Iterable[RunnerProcess]]) -> None:
        self._open_store = open_store
        self._members = members
        self._timeout: AnswerTimeout | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        pause = LONGEST_SLEEP
        while not await sleep(stopping, pause):
            due, pause = self._due(boottime())
            if due:
                await self._renew(await self._open_store(), due)

    def _due(self, now: float) -> tuple[list[tuple[RunnerProcess, Seen]], float]:
        due: list[tuple[RunnerProcess, Seen]] = []
        shortest = LONGEST_SLEEP * 10
        for member in self._members():
            held: set[Hold] = set()
            silent = now - member.board.pulse > SILENT_FOR
            for seen in member.board.seen():
                held.add(seen.hold)
                lease = seen.lease / 1_000_000
                shortest = min(shortest, lease)
                waits = member.stopped_since is not None or (silent and seen.status == CLAIMED)
                if not waits and seen.hold not in member.refused and now >= member.asked_at(seen) + lease / 3:
                    due.append((member, seen))
            member.refused &= held
            member.renewed_at = {hold: at for hold, at in member.renewed_at.items() if hold in held}
        return due, shortest / 10

    def _timeout_of(self, store: Storage) -> AnswerTimeout:
        if self._timeout is None:
            self._timeout = AnswerTimeout(store.answer_timeout)
        return self._timeout

    async def _renew(self, store: Storage, due: list[tuple[RunnerProcess, Seen]]) -> None:
        for start in range(0, len(due), store.chunk):
            some = due[start : start + store.chunk]
            asked_at = boottime()
            started = [Started(seen.hold, seen.started_at) for _, seen in some if seen.started]
            # an answer that takes longer comes too late to try once more before the lease is over
            longest = min(seen.lease for _, seen in some) / 3_000_000
            asking = store.renew([seen.hold for _, seen in some], started)
            verdicts = await self._timeout_of(store).answer(asking, longest)
            for (member, seen), verdict in zip(some, verdicts, strict=True):
                if verdict.refusal is not None:
                    member.refused.add(seen.hold)
                    continue
                member.renewed_at[seen.hold] = asked_at
                member.board.write_renewal(seen, asked_at)
