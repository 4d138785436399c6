"""What handlers need and do not make themselves: `app.provide(Pool, make_pool)`.

A thing is made by calling `make`; a coroutine is awaited, a context manager (plain or async) is entered, and left in
reverse order when its scope ends. Scope "worker": opened when a worker starts, closed when it has stopped. Scope "job":
opened before each attempt, closed after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Literal

from ..errors import InvalidCall

Scope = Literal["worker", "job"]


class _Provided:
    """The default of a parameter that the worker fills in, so that a type checker lets a caller leave it out."""

    def __repr__(self) -> str:
        return "PROVIDED"


PROVIDED: Any = _Provided()


class Provider:
    """How one kind of thing is made, and for how long it lives."""

    __slots__ = ("kind", "make", "scope")

    def __init__(self, kind: type[Any], make: Callable[[], Any], scope: Scope) -> None:
        if not isinstance(kind, type):
            raise InvalidCall(f"provide takes a class to ask for, not {kind!r}")
        if kind.__module__ == "builtins":
            raise InvalidCall(f"{kind.__name__} cannot be provided: parameters of that kind come from the payload")
        if not callable(make):
            raise InvalidCall(
                f"provide({kind.__name__}, …) takes a class, a function or a context manager's function to call, "
                f"not {type(make).__name__}"
            )
        if scope not in ("worker", "job"):
            raise InvalidCall(f'scope must be "worker" or "job", it is {scope!r}')
        self.kind = kind
        self.make = make
        self.scope = scope

    async def open(self, stack: AsyncExitStack) -> object:
        """Make the thing; the stack closes it."""
        try:
            made = self.make()
            if inspect.isawaitable(made) and not hasattr(type(made), "__aenter__"):
                made = await made
            if hasattr(type(made), "__aenter__"):
                return await stack.enter_async_context(made)
            if hasattr(type(made), "__enter__"):
                return stack.enter_context(made)
            return made
        except Exception as error:
            error.add_note(f"while {self.kind.__name__} was opened, which is provided for each {self.scope}")
            raise


Provided = Mapping[type[Any], object]


async def open_all(providers: Iterable[Provider], stack: AsyncExitStack) -> dict[type[Any], object]:
    """The things of these providers, opened in their order."""
    return {provider.kind: await provider.open(stack) for provider in providers}


class Opened:
    """What a worker has opened: one thing of each provider, for all of its tasks."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._things: dict[Provider, object] = {}

    async def open(self, providers: Iterable[Provider]) -> None:
        """Open these, once each. When one cannot be opened, those before it are closed again."""
        try:
            for provider in providers:
                if provider not in self._things:
                    self._things[provider] = await provider.open(self._stack)
        except BaseException:
            await self._stack.aclose()
            raise

    async def close(self) -> None:
        """Close all, the last opened first."""
        await self._stack.aclose()

    def given(self, provided: Mapping[type[Any], Provider]) -> Provided:
        """What a task that may ask for these kinds gets."""
        return {kind: self._things[provider] for kind, provider in provided.items() if provider in self._things}


def names_of(kinds: Iterable[type[Any]]) -> str:
    """The kinds for a message."""
    return ", ".join(sorted(kind.__qualname__ for kind in kinds)) or "nothing"


def is_kind(hint: object, provided: Mapping[type[Any], Provider]) -> bool:
    """Whether a parameter with this annotation is filled in."""
    return isinstance(hint, type) and hint in provided
