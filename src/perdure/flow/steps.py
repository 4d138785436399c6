"""Durable steps inside a job: what was done stays done in later attempts.

Each is a kv entry that belongs to the job and is removed with it: the result of a step, the end of a sleep, an answer from
outside, the call that undoes the job when it dies. A handler writes its entries under its hold, so that a handler that has
lost its job can write none.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from ..core.clock import Duration, micros_of
from ..core.encoding import codec
from ..core.job import Loss
from ..core.outcome import Snooze
from ..core.record import Hold
from ..core.validation import check_name
from ..errors import HoldLost, InvalidCall, ResultTimeout
from ..handler.context import Context, StoreWait
from ..observe import log
from ..storage.contract import KvEntry, KvWrite

T = TypeVar("T")
_WAITS = "it waits for the answer"
STEP, ANSWER, UNDO = "step", "answer", "undo"
MOST = 10_000  # steps of one job
NEVER = 3_650 * 86_400 * 1_000_000  # microseconds: a wait without a timeout ends after ten years


class Kept(Protocol):
    """Where the texts of a job are kept."""

    async def texts(self, job: str, kind: str) -> list[KvEntry]: ...
    async def keep(self, write: KvWrite) -> Loss | None: ...  # why it is not kept
    async def now(self) -> int: ...


class Steps:
    """The steps of one attempt."""

    def __init__(self, context: Context, kept: Kept) -> None:
        self._context = context
        self._job = context._record
        self._hold: Hold = context._record.hold
        self._kept = kept
        self._known: dict[str, str] | None = None
        self._seen: set[str] = set()
        self._sleeps = 0

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kind_of: Callable[[Callable[..., Any]], Any],
    ) -> Any:
        """The result of `fn`, which is called once per job and not once per attempt. `kind_of` tells what it returns by its
        annotation."""
        check_name(name, "ctx.step name")
        if not callable(fn):
            raise InvalidCall(f"ctx.step takes a function: ctx.step({name!r}, fn, …), not {type(fn).__name__}")
        if name in self._seen:
            raise InvalidCall(f"two steps of this job are named {name!r}; a step in a loop needs a name for each round")
        self._seen.add(name)
        known = await self._texts()
        if name in known:
            return _decode_result(name, known[name], fn, kind_of)
        try:
            value = await _call(fn, args, kwargs)
            await self._keep(STEP, name, codec.encode(value, f"the result of step {name!r}"))
        except BaseException:
            self._seen.discard(name)  # it may be tried again in this attempt
            raise
        return value

    async def sleep(self, duration: Duration) -> None:
        """Give the slot back and come again when the time is over."""
        self._sleeps += 1
        name = f"\x1fsleep {self._sleeps}"  # no step of a user's has such a name
        micros = micros_of(duration, "ctx.sleep")
        known = (await self._texts()).get(name)
        wake = int(known) if known is not None else await self._ask(self._kept.now()) + micros
        if known is None:
            await self._keep(STEP, name, str(wake))
        elif self._job.run_at >= wake or await self._ask(self._kept.now()) >= wake:
            return
        raise _later(wake, "it sleeps")

    async def wait_for(self, name: str, timeout: Duration | None) -> Any:
        """The answer of `app.jobs.answer`."""
        check_name(name, "ctx.wait_for name")
        answers = {answer.name: answer for answer in await self._ask(self._kept.texts(self._job.id, ANSWER))}
        answer = answers.get(name_of(self._job.id, name))
        if answer is not None:
            return codec.decode(answer.text)
        mark = f"\x1fwait {name}"
        known = (await self._texts()).get(mark)
        now = await self._ask(self._kept.now())
        until = now + (NEVER if timeout is None else micros_of(timeout, "ctx.wait_for timeout"))
        if known is not None:
            until = max(until, now + 1) if timeout is None else int(known)
        elif timeout is not None:
            await self._keep(STEP, mark, str(until))
        if until <= now:
            raise ResultTimeout(f"nobody answered {name!r} for job {self._job.id} in time")
        raise _later(until, waits_for(name))

    async def _ask(self, question: Awaitable[T]) -> T:
        """The store's answer to a question of this handler."""
        with StoreWait(self._context):
            return await question

    async def _texts(self) -> dict[str, str]:
        if self._known is None:
            rows = await self._ask(self._kept.texts(self._job.id, STEP))
            self._known = {row.name.partition("/")[2]: row.text for row in rows}
        return self._known

    async def _keep(self, kind: str, name: str, text: str) -> None:
        write = KvWrite(kind, name_of(self._job.id, name), text, job=self._job.id, hold=self._hold)
        if (reason := await self._ask(self._kept.keep(write))) is not None:
            raise HoldLost(f"the job is no longer held by this handler: {reason}", reason)
        (await self._texts())[name] = text


async def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function's value; a plain function blocks a thread, not the loop."""
    if inspect.iscoroutinefunction(fn) or getattr(
        fn, "is_async_verb", False
    ):  # Python 3.11 does not see a verb as async
        return await fn(*args, **kwargs)
    value = await asyncio.to_thread(fn, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def name_of(job: str, name: str) -> str:
    """The name of a kv entry that belongs to a job."""
    return f"{job}/{name}"


def waits_for(name: str) -> str:
    """The reason of a job that sleeps until it is answered."""
    return f"{_WAITS} {name!r}"


def waits_for_an_answer(reason: str | None) -> bool:
    return reason is not None and reason.startswith(_WAITS)


def _later(at: int, reason: str) -> Snooze:
    outcome = Snooze(0, reason=reason)
    outcome.delay, outcome.at = None, at
    return outcome


def _decode_result(name: str, text: str, fn: Callable[..., Any], kind_of: Callable[[Callable[..., Any]], Any]) -> Any:
    """A kept result as the function's annotation says; plain JSON where it says nothing."""
    try:
        kind = kind_of(fn)
    except Exception as error:  # an annotation may raise anything
        log.step_is_plain(name, error)
        kind = Any
    if typing.get_origin(kind) in (Awaitable, typing.Coroutine):
        kind = typing.get_args(kind)[-1]
    if kind in (Any, object, None):
        return codec.decode(text)
    try:
        return codec.decoder(kind)(text)
    except (TypeError, NameError, ValueError, msgspec.MsgspecError):
        return codec.decode(text)
