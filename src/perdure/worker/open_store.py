"""Starting although the store cannot be opened yet: the start is tried again, with pauses that grow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import StoreError, StoreMisconfigured
from ..observe import log

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries


async def retry_until_opened(
    start: Callable[[], Awaitable[T]], worker: str, failed: Callable[[], None] | None = None
) -> T:
    """Call `start` until it no longer fails because of the store; `failed` is called after each try that does.

    A store that is misconfigured raises at once: nobody mends that by waiting. So does every other error."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await start()
        except StoreMisconfigured:
            raise
        except StoreError as error:
            log.store_not_opened(worker, error, pause)
        if failed is not None:
            failed()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def retry_until_opened_or(stopping: asyncio.Event, start: Callable[[], Awaitable[T]], worker: str) -> T | None:
    """The same, but given up as soon as the event is set; then the answer is None."""
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
