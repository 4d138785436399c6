"""Items: jobs of a batch, or pulled by hand. Each has an outcome of its own, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..core.clock import Duration
from ..core.job import Job, Loss
from ..core.outcome import Dead, Outcome, Retry, Skip, Snooze
from ..core.record import Record
from ..core.verb import verb
from ..errors import HoldLost, InvalidCall
from .context import Context, ContextBackend, Transaction

if TYPE_CHECKING:
    from .._sync import SyncItem
    from ..app import Perdure

A = TypeVar("A")


class OutcomeReporter(Protocol):
    """Reports the outcome of an item to the store. Workers and pull claims have one; `task.run(…)` only keeps the
    outcome."""

    async def report(self, item: Item[Any], value: object, outcome: Outcome | None) -> None: ...


class Item(Context, Generic[A]):
    """One job of a batch: a Context with its arguments, and a verb for each outcome.

    >>> from perdure import Perdure
    >>> app = Perdure("memory://")
    >>> @app.batch_task(size=32)
    ... async def embed(items: list[Item[str]]) -> list[int]:
    ...     return [len(item.args) for item in items]
    >>> embed.sync.run("four")
    4
    """

    __slots__ = ("_around", "_reporter", "_said", "args")

    def __init__(
        self,
        app: Perdure,
        record: Record,
        worker: str,
        speaker: ContextBackend,
        loop: asyncio.AbstractEventLoop | None,
        reporter: OutcomeReporter,
        args: A,
    ) -> None:
        super().__init__(app, record, worker, speaker, loop)
        self._reporter = reporter
        self._said: str | None = None
        self._around: BatchContext | None = None
        self.args = args

    @property
    def sync(self) -> SyncItem[A]:
        """The same verbs in their blocking form, for `def` handlers."""
        from .._sync import SyncItem

        return SyncItem(self)

    @staticmethod
    def _spelled() -> str:
        return "item"

    @verb
    async def succeed(self, result: object = None, /) -> None:
        """This item is done; that is stored when this returns."""
        await self._report("succeeded", result, None)

    @verb
    async def retry(self, delay: Duration | None = None, *, at: datetime | None = None, reason: str = "") -> None:
        """This item failed, and is tried again after a delay of its own, at an instant, or by the task's backoff."""
        if at is not None and delay is not None:
            raise InvalidCall("item.retry takes a delay or at=, not both")
        await self._report("retried", None, Retry(delay, reason=reason) if at is None else Retry(at=at, reason=reason))

    @verb
    async def snooze(self, delay: Duration, /) -> None:
        """This item comes back later, free of charge."""
        await self._report("snoozed", None, Snooze(delay))

    @verb
    async def skip(self, reason: str = "", /) -> None:
        """There was nothing to do for this item."""
        await self._report("skipped", None, Skip(reason))

    @verb
    async def dead(self, reason: str, /) -> None:
        """No further attempt can help this item: it becomes a dead letter."""
        await self._report("dead", None, Dead(reason))

    @verb
    async def transaction(self) -> Transaction:
        """Open the transaction that commits with this item's completion. On SQLite one item at a time has one open."""
        if self._around is not None and self._transaction is None:
            self._around._refuse_in_transaction("a second item's transaction")
        opened = await super().transaction()
        if self._around is not None:
            self._around._transaction = opened
        return opened

    async def _report(self, word: str, value: object, outcome: Outcome | None) -> None:
        if self._said is not None:
            raise InvalidCall(f"item {self._record.id} has its outcome already: {self._said}")
        reason = self.lost.reason
        if reason is not None and reason is not Loss.SHUTDOWN:
            raise HoldLost(f"item {self._record.id} is no longer held: {reason}", reason)
        self._said = word
        try:
            await self._reporter.report(self, value, outcome)
        except InvalidCall:
            self._said = None
            raise
        finally:
            if self._around is not None and self._around._transaction is self._transaction:
                self._around._transaction = None


class BatchContext(Context):
    """What middleware around a batch sees, and `Context.current()` inside it: all of its jobs. Its job, tenant and fence are
    those of the first."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Item[Any]]) -> None:
        first = items[0]
        super().__init__(first.app, first._record, first.worker, first._speaker, first._loop)
        self._items = items
        for item in items:
            item._around = self

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs of the batch, in the order of its items."""
        return tuple(item.job for item in self._items)

    @verb
    async def progress(self, value: object, /) -> None:
        """Tell how far the batch is: the same for each item that has no outcome yet."""
        await asyncio.gather(*(item.progress(value) for item in self._open()))

    @verb
    async def log(self, line: str, /) -> None:
        """Add a line to the log of each item that has no outcome yet."""
        await asyncio.gather(*(item.log(line) for item in self._open()))

    @verb
    async def transaction(self) -> Transaction:
        """Refused: each item has a transaction of its own."""
        raise InvalidCall("a batch has no transaction of its own; each item has one: await item.transaction()")

    def _open(self) -> list[Item[Any]]:
        return [item for item in self._items if item._said is None and not item.lost.is_set()]


def results_of(task: str, items: Sequence[object], value: object) -> Sequence[object]:
    """What a batch handler returned, one result for each item. InvalidCall when it does not fit."""
    if value is None:
        return [None] * len(items)
    if not isinstance(value, list | tuple):
        raise InvalidCall(
            f"{task} gave {type(value).__name__}; a batch task gives a list with one result per item, or None"
        )
    if len(value) != len(items):
        raise InvalidCall(
            f"{task} gave {len(value)} result(s) for {len(items)} item(s); it must give one per item, in order, or None"
        )
    return value
