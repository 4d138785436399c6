"""A decorator for tools that are awaited in `async def` tests and called in plain ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def either(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Any]:
    """Return a coroutine inside a running loop, and the result itself outside."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            from perdure.sync import run

            return run(lambda: function(*args, **kwargs))
        return function(*args, **kwargs)

    return call
