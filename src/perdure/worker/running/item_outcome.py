"""How an item of a batch gets its outcome while the call goes on: told at once, and awaited until it is on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core.job import Loss
from ...core.outcome import Outcome
from ...errors import InvalidCall
from ...handler.item import Item
from ...storage.contract import LOSS_OF, Verdict
from .attempt import Attempt, succeeded_by

Confirm = Callable[[Attempt], "asyncio.Future[Verdict | None]"]


class ItemOutcome:
    """Tells the outcome of one item."""

    __slots__ = ("_attempt", "_confirm", "_over")

    def __init__(
        self, attempt: Attempt, over: Callable[[Attempt, object, BaseException | None], None], confirm: Confirm
    ) -> None:
        self._attempt = attempt
        self._over = over
        self._confirm = confirm

    async def report(self, item: Item[Any], value: object, outcome: Outcome | None) -> None:
        attempt = self._attempt
        assert attempt.definition is not None
        if attempt.ended:
            raise InvalidCall(f"the batch or claim of item {attempt.record.id} is over; claim the job again")
        if outcome is None:  # what cannot be stored is told to the handler, not found out later
            succeeded_by(attempt, attempt.definition, value)
        confirmed = self._confirm(attempt)
        self._over(attempt, value, outcome)
        verdict = await asyncio.shield(confirmed)
        if verdict is not None and verdict.refusal is not None:
            item.lost._set(LOSS_OF.get(verdict.refusal, Loss.ERROR))
        if attempt.lost is None:
            item.lost.check()
