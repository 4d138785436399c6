"""Gives an item of a batch its outcome while the call goes on: reports it at once, and waits until the store has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core.job import Loss
from ...core.outcome import Outcome
from ...errors import InvalidCall
from ...handler import context_access
from ...handler.item import Item
from ...storage.contract import LOSS_OF, Verdict
from .attempt import Attempt, success_report_of

Confirm = Callable[[Attempt], "asyncio.Future[Verdict | None]"]


class ItemOutcome:
    """Reports the outcome of one item."""

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
        if outcome is None:  # the handler learns now if its value cannot be stored
            success_report_of(attempt, attempt.definition, value)
        confirmed = self._confirm(attempt)
        self._over(attempt, value, outcome)
        verdict = await asyncio.shield(confirmed)
        if verdict is not None and verdict.refusal is not None:
            context_access.lose(item, LOSS_OF.get(verdict.refusal, Loss.ERROR))
        if attempt.lost is None:
            item.lost.check()
