"""Middleware: functions that wrap every attempt of a task. The first is the outermost."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from inspect import CO_COROUTINE
from types import FunctionType
from typing import TYPE_CHECKING

from ..errors import InvalidCall
from .providers import Provider, open_all

if TYPE_CHECKING:
    from ..handler.context import Context

Next = Callable[[], Awaitable[object]]
Middleware = Callable[["Context", Next], Awaitable[object]]


def check_middleware(middleware: Middleware) -> Middleware:
    """InvalidCall unless it can be called as one."""
    try:
        inspect.signature(middleware).bind(None, None)
    except (TypeError, ValueError):
        raise InvalidCall(
            f"a middleware is a function of (ctx, call_next) that awaits call_next(), not {middleware!r}"
        ) from None
    return middleware


async def run_with_middleware(
    middleware: Sequence[Middleware], providers: Sequence[Provider], context: Context, inner: Next
) -> object:
    """Open what lives as long as this attempt, then call the handler through its middleware."""
    if not providers:
        return await call_through(middleware, context, inner)
    async with AsyncExitStack() as stack:
        context._given = {**context._given, **await open_all(providers, stack)}
        return await call_through(middleware, context, inner)


async def call_through(middleware: Sequence[Middleware], context: Context, inner: Next) -> object:
    """Call the handler through its middleware."""
    return await wrap_handler(middleware, context, inner)()


def wrap_handler(middleware: Sequence[Middleware], context: Context, inner: Next) -> Next:
    """The handler with all middleware around it, as one function."""
    return wrap_prepared(prepare_middleware(middleware), context, inner)


def wrap_prepared(skins: Sequence[Middleware], context: Context, inner: Next) -> Next:
    """The same, of middleware that was made ready."""
    call = inner
    for skin in skins:
        call = partial(skin, context, call)
    return call


def prepare_middleware(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Middleware in the order in which a handler is wrapped, the innermost first. Each returns an awaitable."""
    return tuple(each if _is_async(each) else partial(_call_checked, each) for each in reversed(middleware))


def _is_async(middleware: Middleware) -> bool:
    """Whether it is an `async def`, as nearly all are: its result need not be checked then."""
    return middleware.__class__ is FunctionType and bool(middleware.__code__.co_flags & CO_COROUTINE)


async def _call_checked(middleware: Middleware, context: Context, call_next: Next) -> object:
    answer = middleware(context, call_next)
    if not inspect.isawaitable(answer):
        raise InvalidCall(
            f"middleware {middleware!r} gave {answer!r}; it must be async, and return what call_next() gave"
        )
    return await answer
