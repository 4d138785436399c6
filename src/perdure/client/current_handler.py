"""The handler that runs now, as the verbs it calls see it: does it hold a transaction, does it wait for the store?

A verb that writes to the store is refused inside the handler's own transaction, because it would wait for a lock that the
handler holds. While a verb waits for the store, the handler is marked: a timeout is not its fault then.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from ..core.clock import boottime

if TYPE_CHECKING:
    from ..handler.context import Context

current_handler: ContextVar[Context] = ContextVar("perdure.context")
waits_lock = threading.Lock()  # one for all handlers: it is taken once per loss, wait or question to the store
_NO_WAIT = nullcontext()


class StoreWait:
    """Marks, for as long as it is entered, that a handler waits for an answer of the store. Several may be entered at the
    same time, also from several threads."""

    __slots__ = ("_context", "since")

    def __init__(self, context: Context) -> None:
        self._context = context
        self.since = 0.0

    def __enter__(self) -> None:
        self.since = boottime()
        with waits_lock:
            if not hasattr(self._context, "_store_waits"):
                self._context._store_waits = []
            self._context._store_waits.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with waits_lock:
            self._context._store_waits.remove(self)


def waiting_for_store() -> AbstractContextManager[None]:
    """A StoreWait of the handler that this code runs in. Outside a handler it does nothing."""
    context = current_handler.get(None)
    return _NO_WAIT if context is None else StoreWait(context)


def refuse_in_transaction(what: str) -> None:
    """Raise InvalidCall if a verb that writes to the store is called inside the handler's own transaction."""
    context = current_handler.get(None)
    if context is not None:
        context._refuse_in_transaction(what)
