"""Tools that work in `async def` tests (awaited) and in plain ones (as they are)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def either(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Any]:
    """Inside a running loop the coroutine, to be awaited; outside, the result itself."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Any:
        if asyncio._get_running_loop() is not None:
            return function(*args, **kwargs)
        from perdure.sync import run

        return run(lambda: function(*args, **kwargs))

    return called
