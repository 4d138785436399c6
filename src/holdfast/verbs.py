"""Verbs are async. Called where no event loop runs, a verb says so at once and names its blocking form, instead of
handing out a coroutine that nobody will await."""

from __future__ import annotations

import inspect
from asyncio import _get_running_loop
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from .errors import NoLoop

F = TypeVar("F", bound=Callable[..., Any])


def verb(function: F) -> F:
    """Mark an `async def` (or a maker of an async iterator) as a verb of the public API. Its class says by `_spelled`
    how a caller would write the object in front of it."""
    name = function.__name__

    @wraps(function)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _get_running_loop() is None:
            raise no_loop(self._spelled(), name)
        return function(self, *args, **kwargs)

    if inspect.iscoroutinefunction(function) and hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(checked)
    return cast(F, checked)


def no_loop(spelled: str, name: str) -> NoLoop:
    return NoLoop(
        f"{spelled}.{name}(…) needs a running event loop; await it inside `async def`, "
        f"or use the blocking form {spelled}.sync.{name}(…)"
    )
