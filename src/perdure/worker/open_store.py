"""Starts a worker although its store cannot be opened yet: it tries again, with pauses that grow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..core.growing_pause import GrowingPause
from ..errors import StoreError, StoreMisconfigured
from ..observe import log

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries


async def retry_until_opened(
    start: Callable[[], Awaitable[T]], worker: str, failed: Callable[[], None] | None = None
) -> T:
    """Call `start` until it no longer fails because of the store; `failed` is called after each try that does.

    A misconfigured store raises at once, because waiting does not help. So does every other error."""
    pauses = GrowingPause(FIRST_PAUSE, LONGEST_PAUSE, jitter=False)  # the log says when the next try is
    while True:
        try:
            return await start()
        except StoreMisconfigured:
            raise
        except StoreError as error:
            pause = pauses.next()
            log.store_not_opened(worker, error, pause)
        if failed is not None:
            failed()
        await asyncio.sleep(pause)


async def retry_until_opened_or(stopping: asyncio.Event, start: Callable[[], Awaitable[T]], worker: str) -> T | None:
    """The same, but give up and return None as soon as the event is set."""
    starting = asyncio.ensure_future(retry_until_opened(start, worker))
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
    return None if starting.cancelled() else starting.result()
