"""Starts attempts: checks that the hold can still be trusted, notes the start, and makes the context that the handler
sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core.clock import MicrosReader, boottime
from ...core.job import Loss
from ...handler import context_access
from ...handler.context import Context
from ...handler.item import Item
from ..completion_queue import CompletionQueue
from ..host import HostApp
from ..leases.held_jobs import HeldJobs
from ..leases.status_board import ELSEWHERE
from .attempt import Attempt
from .completion import Completion
from .context_backend import StoreContextBackend
from .item_outcome import ItemOutcome


class Starter:
    """Starts the attempts of one worker or pull claim."""

    def __init__(
        self,
        *,
        app: HostApp,
        worker: str,
        held: HeldJobs,
        completions: CompletionQueue,
        completion: Completion,
        backend: StoreContextBackend,
        now: MicrosReader,
    ) -> None:
        self._app: Any = app  # a Perdure, as Context declares it
        self._worker = worker
        self._held = held
        self._board = held.board
        self._completions = completions
        self._completion = completion
        self._backend = backend
        self._now = now
        self._loop = asyncio.get_running_loop()

    def may_start(self, attempt: Attempt) -> bool:
        """False when the hold is gone, or its lease cannot be trusted any more."""
        if attempt.ended or attempt.lost is not None:
            return False
        attempt.started_boot = now = boottime()
        if now < attempt.trusted_until or self._held.trusts(attempt, now):
            return True
        attempt.lost, attempt.ended = Loss.ERROR, True
        self._loop.call_soon_threadsafe(self._completions.lose, attempt, Loss.ERROR)
        return False

    def start(self, attempt: Attempt) -> Context | None:
        """Start an attempt now; None when it may not start. May be called from any thread."""
        if not self.may_start(attempt):
            return None
        record = attempt.record
        attempt.started_at = record.started_at = self._now()
        if attempt.definition is not None and attempt.definition.run_in == "process":
            attempt.untimed = True
        elif self._board is not None:
            self._board.start(attempt)
        context = attempt.context = Context(self._app, record, self._worker, self._backend, self._loop)
        if attempt.parents:
            context_access.set_parents(context, attempt.parents)
        if attempt.lost is not None:  # it was lost just before it had a context
            context_access.lose(context, attempt.lost)
        return context

    def start_item(self, attempt: Attempt, read_arguments: Callable[[Attempt], Any]) -> Item[Any] | None:
        """Start an attempt as an item of a batch or of a pull claim. If its arguments do not fit, this item alone fails."""
        attempt.started_at = attempt.record.started_at = self._now()
        if self._board is not None:
            self._board.start(attempt)
        try:
            arguments = read_arguments(attempt)
        except KeyboardInterrupt:
            raise
        except BaseException as unfit:  # the types of a user may raise anything
            self._completion.finish(attempt, None, unfit)
            return None
        outcome = ItemOutcome(attempt, self._completion.finish, self._completions.confirm)
        item: Item[Any] = Item(self._app, attempt.record, self._worker, self._backend, self._loop, outcome, arguments)
        attempt.context = item
        if attempt.parents:
            context_access.set_parents(item, attempt.parents)
        return item

    def start_in_child(self, attempt: Attempt) -> None:
        """A child process took the attempt: its time starts now."""
        attempt.started_at = attempt.record.started_at = self._now()
        attempt.started_boot, attempt.untimed = boottime(), False
        if self._board is not None:
            self._board.start(attempt, ELSEWHERE)
