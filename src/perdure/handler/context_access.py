"""What a worker does with the context of a handler, and the handler itself may not do.

`Context` is public, so its inner state has private names. This module is the one door to them for other packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.job import Loss
from .context import Context, _current
from .item import BatchContext, Item

if TYPE_CHECKING:
    from ..core.record import NewJob, Record
    from ..storage.contract import StoreTransaction
    from ..tasks.providers import Provided

current_handler = _current  # the context variable that `Context.current` reads


def record_of(context: Context) -> Record:
    return context._record


def loop_of(context: Context) -> asyncio.AbstractEventLoop:
    """The event loop of the worker that runs the handler."""
    assert context._loop is not None
    return context._loop


def items_of(context: BatchContext) -> list[Item[Any]]:
    return list(context._items)


def transaction_of(context: Context) -> StoreTransaction | None:
    """The transaction that the handler has opened, if any."""
    return None if context._transaction is None else context._transaction._inner


def undos_of(context: Context | None) -> Sequence[NewJob]:
    """What the handler asked to be done if its job dies."""
    return getattr(context, "_undos", ())


def set_parents(context: Context, parents: tuple[tuple[str, str | None], ...]) -> None:
    """Give the handler the tasks and results of its parents."""
    context._parents = parents


def set_progress(context: Context, text: str) -> None:
    """The store has this progress now."""
    context._record.progress = text
    context._job = None


def provide(context: Context, provided: Provided) -> None:
    context._given = provided


def provide_items(context: BatchContext) -> None:
    """Provide the items of a batch with what the batch has."""
    for item in context._items:
        item._given = context._given


def lose(context: Context, reason: Loss) -> None:
    """Tell the handler to stop, through `ctx.lost`."""
    context.lost._set(reason)


def seconds_of_store_wait(context: Context) -> float | None:
    """For how long the oldest call of the handler to the store has been unanswered; None when there is none."""
    return context._waited_for_store()


def close(context: Context) -> bool:
    """The handler is over: refuse whatever its code still tries. True when it has a transaction to be ended."""
    context._over = True
    return context._transaction is not None
