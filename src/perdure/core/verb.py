"""Marks the async verbs of the public API. A verb that is called where no event loop runs raises at once and names its
blocking form, instead of returning a coroutine that nobody will await."""

from __future__ import annotations

import asyncio
import inspect
import sys
from asyncio import get_running_loop
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from ..errors import NoLoop

F = TypeVar("F", bound=Callable[..., Any])


def verb(function: F) -> F:
    """Mark an `async def` (or a maker of an async iterator) as a verb of the public API. Its class says by `_spelled`
    how a caller would write the object in front of it."""
    name = function.__name__

    @wraps(function)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            get_running_loop()
        except RuntimeError:
            raise no_loop(self._spelled(), name) from None
        return function(self, *args, **kwargs)

    if inspect.iscoroutinefunction(function):
        _mark_as_async(checked)
        checked.is_async_verb = True  # type: ignore[attr-defined]
    return cast(F, checked)


def _mark_as_async(function: Callable[..., Any]) -> None:
    """Let frameworks that ask see that it is to be awaited; they would call it in a thread otherwise."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def needs_loop(function: F) -> F:
    """The same for what has no blocking form: the life of a worker."""
    name = function.__name__

    @wraps(function)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            get_running_loop()
        except RuntimeError:
            raise NoLoop(
                f"{self._spelled()}.{name}() needs a running event loop; await it inside `async def main()`, "
                "and run that with asyncio.run(main())"
            ) from None
        return function(self, *args, **kwargs)

    _mark_as_async(checked)
    return cast(F, checked)


def no_loop(spelled: str, name: str) -> NoLoop:
    return NoLoop(
        f"{spelled}.{name}(…) needs a running event loop; await it inside `async def`, "
        f"or use the blocking form {spelled}.sync.{name}(…)"
    )
