"""The common life of workers and pools: start, work until a signal or `stop()`, stop."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..core.verb import needs_loop
from .open_store import retry_until_opened_or
from .service import first_of


class Lifetime(ABC):
    """`async with` it, or `await it.run()` until SIGTERM or SIGINT."""

    id: str  # how the log names it

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._give_up = asyncio.Event()  # a start that waits for the store: a signal or `stop()` came

    @abstractmethod
    async def start(self) -> None:
        """Begin to work."""

    @staticmethod
    def _spelled() -> str:
        return "worker"

    @needs_loop
    async def run(self) -> None:
        """Start, and work until SIGTERM or SIGINT (a second one hurries) or `stop()`. A store that cannot be opened yet is
        tried again until it can. One that is cancelled stops as well, and ends as cancelled when that is done; a second
        cancellation hurries."""
        hurry = asyncio.Event()
        asked = asyncio.Event()
        self._give_up.clear()

        def on_signal() -> None:
            (hurry if asked.is_set() else asked).set()
            self._give_up.set()

        removed = _on_signals(on_signal)
        try:
            await retry_until_opened_or(self._give_up, self.start, self.id)
            if not self._give_up.is_set():
                await first_of(self._stopped, asked)
        finally:
            try:
                await self._end(hurry)
            finally:
                removed()

    @needs_loop
    async def stop(self) -> None:
        """Claim nothing more, let handlers finish for `grace`, tell the rest to stop, hand their jobs back."""
        await self._end(asyncio.Event())

    async def _end(self, hurry: asyncio.Event) -> None:
        """Stop, also if this call is cancelled: nobody else would do it."""
        self._give_up.set()
        stopping = asyncio.create_task(self._stop(hurry))
        cancelled = False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                cancelled = True
                hurry.set()
        if cancelled:
            raise asyncio.CancelledError
        stopping.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.stop()

    @abstractmethod
    async def _stop(self, hurry: asyncio.Event) -> None:
        """Stop; at once when `hurry` is set."""


def _on_signals(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back on SIGTERM and SIGINT. Returns the function that undoes it."""
    loop = asyncio.get_running_loop()
    added = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, callback)
            added.append(number)
        except (NotImplementedError, ValueError, RuntimeError):  # Windows, or not the main thread
            continue

    def remove() -> None:
        for number in added:
            loop.remove_signal_handler(number)

    return remove
