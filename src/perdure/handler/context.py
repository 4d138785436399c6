"""The context: what a handler sees of its job, and the verbs that it may call while it runs.

A Context lives as long as one attempt. `ctx.lost` asks the handler to stop, and has the reason. The worker's event loop
sets it, and the handler may read it from any thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, overload

from ..client.current_handler import StoreWait as StoreWait
from ..client.current_handler import current_handler, waits_lock
from ..core.clock import boottime
from ..core.encoding.codec import decode, encode
from ..core.job import Job, Loss
from ..core.record import NewJob, Record, job_of
from ..core.verb import verb
from ..errors import HoldLost, InvalidCall, NoContext, NotFound, StoreError
from ..tasks.providers import Provided, names_of

if TYPE_CHECKING:
    from .._sync import SyncContext, SyncTransaction
    from ..app import Perdure
    from ..core.clock import Duration
    from ..flow.steps import Steps
    from ..storage.contract import KvEntry, KvWrite, StoreTransaction
    from ..tasks.task import Call

_current = current_handler
LINE_BYTES = 1024
T = TypeVar("T")
Q = ParamSpec("Q")


class Lost:
    """Whether, and why, this handler should stop."""

    __slots__ = ("_waiters", "reason")

    def __init__(self) -> None:
        self.reason: Loss | None = None
        self._waiters: list[asyncio.Future[Loss]] | None = None

    def is_set(self) -> bool:
        return self.reason is not None

    def check(self) -> None:
        """Raise HoldLost if this handler should stop. For loops in `def` handlers."""
        if self.reason is not None:
            raise HoldLost(f"the handler was told to stop: {self.reason}", self.reason)

    async def wait(self) -> Loss:
        """Wait until the handler should stop, and return the reason."""
        told: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        with waits_lock:
            if self.reason is not None:
                return self.reason
            self._waiters = [*(self._waiters or ()), told]
        return await told

    def _set(self, reason: Loss) -> None:
        with waits_lock:
            if self.reason is not None:
                return
            self.reason = reason
            waiters, self._waiters = self._waiters or [], None
        for told in waiters:
            told.get_loop().call_soon_threadsafe(_tell, told, reason)


def _tell(told: asyncio.Future[Loss], reason: Loss) -> None:
    if not told.done():
        told.set_result(reason)


class ContextBackend(Protocol):
    """Connects a context to the store. `task.run(…)` has one without a store."""

    async def progress(self, context: Context, text: str) -> None: ...
    async def log(self, context: Context, line: str) -> None: ...
    async def begin(self, context: Context) -> StoreTransaction: ...
    async def texts(self, job: str, kind: str) -> list[KvEntry]: ...
    async def keep(self, write: KvWrite) -> Loss | None: ...
    async def now(self) -> int: ...
    def undo(self, context: Context, undo: NewJob) -> None: ...


class Transaction:
    """The handler's own transaction, committed together with the job's completion.

    It opens at `ctx.transaction()` and is over when the handler is: returned → committed, raised → undone.
    """

    def __init__(self, inner: StoreTransaction, loop: asyncio.AbstractEventLoop | None) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def connection(self) -> Any:
        """The driver's own connection. Do not commit it."""
        return self._inner.connection

    @property
    def sync(self) -> SyncTransaction:
        from .._sync import SyncTransaction

        return SyncTransaction(self)

    @staticmethod
    def _spelled() -> str:
        return "tx"

    @verb
    async def execute(
        self, statement: str, parameters: Sequence[object] | Mapping[str, object] = (), /
    ) -> list[tuple[Any, ...]]:
        """Run a statement in this transaction and return its rows."""
        return await self._inner.execute(statement, parameters)


class Context:
    """One attempt of one job, as its handler sees it."""

    __slots__ = (
        "_given",
        "_job",
        "_loop",
        "_lost",
        "_opening",
        "_over",
        "_parents",
        "_record",
        "_speaker",
        "_steps",
        "_store_waits",
        "_transaction",
        "_undos",
        "app",
        "worker",
    )

    def __init__(
        self, app: Perdure, record: Record, worker: str, speaker: ContextBackend, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.app = app
        self.worker = worker
        self._lost: Lost | None = None
        self._record = record
        self._speaker = speaker
        self._loop = loop
        self._job: Job | None = None
        self._transaction: Transaction | None = None
        self._over = False

    # set only where there is something to set, so that others do not pay for it
    _given: Provided
    _opening: asyncio.Lock
    _parents: tuple[tuple[str, str | None], ...]
    _steps: Steps
    _store_waits: list[StoreWait]
    _undos: list[NewJob]

    @classmethod
    def detached(cls, app: Perdure, record: Record) -> Context:
        """A context without a store, for `task.run(...)`: progress and log stay here."""
        return cls(app, record, "here", DetachedBackend(), None)

    @staticmethod
    def current() -> Context:
        """The context of the handler that this code runs in, however deep below it."""
        try:
            return _current.get()
        except LookupError:
            raise NoContext("Context.current() was called outside a handler") from None

    @property
    def sync(self) -> SyncContext:
        """The same verbs in their blocking form, for `def` handlers."""
        from .._sync import SyncContext

        return SyncContext(self)

    @property
    def lost(self) -> Lost:
        """Whether, and why, this handler should stop."""
        if self._lost is None:
            with waits_lock:  # the worker and the handler may ask at the same time, from two threads
                self._lost = self._lost or Lost()
        return self._lost

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            self._job = job_of(self._record)
        return self._job

    @property
    def jobs(self) -> tuple[Job, ...]:
        return (self.job,)

    @property
    def tenant(self) -> str | None:
        return self._record.tenant

    @property
    def fence(self) -> str:
        """A text that only this attempt has: hand it to other systems, and let them refuse an older one."""
        return f"{self._record.id}:{self._record.attempt}"

    @property
    def parents(self) -> tuple[Any, ...]:
        """The results of the jobs that this one waited for, in declared order; None for one that gave none."""
        return tuple(_result_of(self.app, task, text) for task, text in getattr(self, "_parents", ()))

    def get(self, kind: type[T], /) -> T:
        """The thing that `app.provide` gave for this kind."""
        given = getattr(self, "_given", {})
        if kind not in given:
            raise NotFound(
                f"nothing of kind {getattr(kind, '__qualname__', kind)} is provided for task {self._record.task}; "
                f"provided: {names_of(given)}. Declare it before the worker starts: app.provide(Kind, make)"
            )
        return cast(T, given[kind])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._record.task} {self.fence}>"

    @staticmethod
    def _spelled() -> str:
        return "ctx"

    @verb
    async def progress(self, value: object, /) -> None:
        """Tell how far the job is; seen by `handle.watch()` and `app.jobs.get()`."""
        self._refuse_in_transaction("ctx.progress")
        text = encode(value, "progress")
        with StoreWait(self):
            await self._speaker.progress(self, text)

    @verb
    async def log(self, line: str, /) -> None:
        """Add a line to the job's log (the last 100 lines of at most 1 KiB are kept)."""
        self._refuse_in_transaction("ctx.log")
        if not isinstance(line, str):
            raise InvalidCall(f"ctx.log takes a str, not {type(line).__name__}")
        with StoreWait(self):
            await self._speaker.log(self, line_of(line))

    @verb
    async def transaction(self) -> Transaction:
        """Open the transaction that commits with this job's completion. Open it last: it may hold a write lock."""
        if not hasattr(self, "_opening"):
            self._opening = asyncio.Lock()
        async with self._opening:  # those who ask at the same time get the same one
            self._refuse_when_over()
            if self._transaction is None:
                with StoreWait(self):
                    begun = await self._speaker.begin(self)
                if self._over:  # nobody would end it
                    await begun.rollback()
                self._refuse_when_over()
                self._transaction = Transaction(begun, self._loop)
        return self._transaction

    @overload
    async def step(self, name: str, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T: ...
    @verb
    async def step(self, name: str, fn: Callable[Q, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Any:
        """The result of a function that runs once per job: `await ctx.step("charge", charge, order)`. It is kept, and a
        later attempt gets it without calling the function again."""
        self._refuse_in_transaction("ctx.step")
        return await self._durable().step(name, fn, args, kwargs, _result_kind)

    @verb
    async def sleep(self, duration: Duration, /) -> None:
        """Give the slot back and come again after this time, free of charge.

        That is a new attempt: what is before it in the handler runs again, so put that into steps."""
        self._refuse_in_transaction("ctx.sleep")
        await self._durable().sleep(duration)

    @verb
    async def wait_for(self, name: str, /, *, timeout: Duration | None = None) -> Any:
        """Wait for an answer from outside, `app.jobs.answer(id, name, value)`, without holding a slot. ResultTimeout
        when nobody answers in time."""
        self._refuse_in_transaction("ctx.wait_for")
        return await self._durable().wait_for(name, timeout)

    def on_dead(self, call: Call[Any], /) -> None:
        """A call to make if this job becomes a dead letter, in this attempt or a later one: what undoes what was done."""
        undo = self.app._runtime.client.job_of_call(call)
        if not hasattr(self, "_undos"):
            self._undos = []
        self._undos.append(undo)
        self._speaker.undo(self, undo)

    def _durable(self) -> Steps:
        from ..flow.steps import Steps

        if not hasattr(self, "_steps"):
            self._steps = Steps(self, self._speaker)
        return self._steps

    def _waited_for_store(self) -> float | None:
        """For how many seconds the oldest unanswered question to the store has waited; None when there is none."""
        with waits_lock:
            since = [wait.since for wait in getattr(self, "_store_waits", ())]
        return boottime() - min(since) if since else None

    def _refuse_when_over(self) -> None:
        if self._over:
            told = f"the handler of job {self._record.id} is over, and its transaction with it"
            raise HoldLost(told, self.lost.reason or Loss.ALREADY_COMPLETED)

    def _refuse_in_transaction(self, what: str) -> None:
        if self._transaction is not None and self._transaction._inner.exclusive:
            raise InvalidCall(
                f"{what} inside ctx.transaction() would wait for itself on this store; "
                "call it before the transaction, or use tx.execute and enqueue with connection=tx"
            )


def line_of(line: str) -> str:
    """One log line: control characters made visible, cut to 1 KiB of UTF-8."""
    clean = "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in line)
    data = clean.encode("utf-8", "backslashreplace")
    return data[:LINE_BYTES].decode("utf-8", "ignore")


def _result_kind(fn: Callable[..., Any]) -> Any:
    """The annotated result of a function that the handler passed to `ctx.step`."""
    from ..sync import frame_of_caller
    from ..tasks.signature import result_kind
    from ..tasks.task import Task

    owner = getattr(fn, "__self__", None)
    if isinstance(owner, Task) and getattr(fn, "__name__", "") == "run":
        return owner._declared.shape.hint("return")
    return result_kind(fn, frame_of_caller() or sys._getframe(1))


def _result_of(app: Perdure, task: str, text: str | None) -> Any:
    definition = app.definitions().get(task)
    if text is None:
        return None
    return decode(text) if definition is None else definition.result_of(text)


class DetachedBackend:
    """The backend of `task.run(…)`: progress and log stay in the context, and nothing is stored."""

    async def progress(self, context: Context, text: str) -> None:
        context._record.progress = text
        context._job = None

    async def log(self, context: Context, line: str) -> None:
        from ..observe.log import line_of_handler

        line_of_handler(context._record, line)

    async def begin(self, context: Context) -> StoreTransaction:
        raise StoreError("ctx.transaction() needs a store; task.run(...) has none")

    async def texts(self, job: str, kind: str) -> list[KvEntry]:
        return []

    async def keep(self, write: KvWrite) -> Loss | None:
        return None

    async def now(self) -> int:
        raise StoreError("ctx.sleep and ctx.wait_for need a store; task.run(...) has none")

    def undo(self, context: Context, undo: NewJob) -> None:
        pass  # a call without a store leaves no dead letter
