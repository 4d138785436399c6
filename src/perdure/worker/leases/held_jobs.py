"""The attempts that a worker holds, from the claim until the store has confirmed the end. The lease keeper renews them
all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from ...core.clock import boottime
from ...core.lifecycle import Change
from ...core.record import Record
from ..running.attempt import Attempt
from .status_board import RunnerBoard

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition


_id: Callable[[Attempt], str] = attrgetter("record.id")


class HeldJobs:
    """Held attempts, by job id."""

    def __init__(self, board: RunnerBoard | None = None) -> None:
        self.board = board
        self._attempts: dict[str, Attempt] = {}
        self.confirmed = 0  # attempts whose end the store has confirmed
        self.filled = asyncio.Event()  # something came since it was last cleared

    def __len__(self) -> int:
        return len(self._attempts)

    def has(self, record: Record) -> bool:
        """Whether this very hold is known here."""
        attempt = self._attempts.get(record.id)
        return attempt is not None and attempt.record.stamp == record.stamp

    def holds(self, attempt: Attempt) -> bool:
        return self._attempts.get(attempt.record.id) is attempt

    def add(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Hold these attempts. Returns the attempts that they replace: the store took those jobs away and granted them to
        this worker again, and the handlers of the old holds must stop."""
        ids = [*map(_id, attempts)]
        replaced = [] if self._attempts.keys().isdisjoint(ids) else self._drop_replaced(attempts)
        if self.board is not None:
            self.board.publish(attempts)
        self._attempts.update(zip(ids, attempts, strict=True))
        if attempts and not self.filled.is_set():
            self.filled.set()
        return replaced

    def _drop_replaced(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        pairs = [(self._attempts.get(attempt.record.id), attempt) for attempt in attempts]
        replaced = [old for old, new in pairs if old is not None and old.record.stamp != new.record.stamp]
        for old in replaced:
            self.drop(old)
        return replaced

    def drop(self, attempt: Attempt) -> None:
        """The store has confirmed the end, or the hold is gone."""
        if self._attempts.get(attempt.record.id) is attempt:
            del self._attempts[attempt.record.id]
            self.confirmed += 1
            if self.board is not None:
                self.board.clear(attempt)

    def drop_all(self, ends: Iterable[tuple[Attempt, Change]]) -> None:
        """The store has confirmed these ends."""
        held, board, dropped = self._attempts, self.board, 0
        for attempt, change in ends:
            known = held.pop(change.id, None)
            if known is attempt:
                dropped += 1
                if board is not None:
                    board.clear(attempt)
            elif known is not None:
                held[change.id] = known  # another hold of the same job
        self.confirmed += dropped

    def due_for_renewal(self, now: float) -> list[Attempt]:
        due = [attempt for attempt in self._attempts.values() if attempt.renew_at <= now]
        if self.board is None:
            return due
        return [attempt for attempt in due if not self._is_renewed_by_supervisor(attempt, now)]

    def out_of_trust(self, now: float) -> list[Attempt]:
        return [attempt for attempt in self._attempts.values() if not self.trusts(attempt, now)]

    def trusts(self, attempt: Attempt, now: float) -> bool:
        """Whether this worker still has the lease, as far as it can know."""
        if now >= attempt.trusted_until and self.board is not None:
            self.board.trust(attempt)
        return now < attempt.trusted_until

    def shortest_lease(self) -> float | None:
        """Seconds of the shortest lease held."""
        shortest = min((attempt.record.lease for attempt in self._attempts.values()), default=None)
        return None if shortest is None else shortest / 1_000_000

    def counts(self, definitions: Collection[TaskDefinition]) -> Counter[TaskDefinition]:
        """How many attempts of each of these tasks are not over."""
        counted = Counter(attempt.definition for attempt in self._attempts.values() if not attempt.ended)
        return Counter({definition: counted[definition] for definition in definitions})

    def at_work(self) -> list[Attempt]:
        return [attempt for attempt in self._attempts.values() if attempt.at_work]

    def where(self, wanted: Callable[[Attempt], bool]) -> list[Attempt]:
        return [attempt for attempt in self._attempts.values() if wanted(attempt)]

    def long_started(self, seconds: float) -> list[Attempt]:
        """Attempts that started some time ago and whose start the store does not know yet."""
        before = boottime() - seconds
        return [
            attempt
            for attempt in self._attempts.values()
            if not attempt.started_noted and attempt.started_at is not None and attempt.started_boot <= before
        ]

    def _is_renewed_by_supervisor(self, attempt: Attempt, now: float) -> bool:
        """The supervisor renews at a third of a lease. After half of the lease it has failed to, and the runner does it."""
        assert self.board is not None
        self.board.trust(attempt)
        ours_at = attempt.asked_at + attempt.record.lease / 2_000_000
        if attempt.board_position < 0 or now >= ours_at:
            return False
        attempt.renew_at = ours_at
        return True
