"""One object per event loop: opened by the first caller that needs it, closed by its owner, with its event loop, or at exit.
It notices the end of its loop by an async generator, which `asyncio.run` closes first.

A forked child does not touch its parent's connections and opens its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class PerLoop(ABC, Generic[T]):
    """One T per event loop."""

    def __init__(self) -> None:
        self._places: dict[asyncio.AbstractEventLoop, T] = {}
        self._guardians: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[T]] = {}
        _known.add(self)

    @abstractmethod
    async def _make(self, migrate: bool) -> T:
        """Open one for the running loop."""

    @abstractmethod
    async def _free(self, one: T, *, orphan: bool, for_good: bool = False) -> None:
        """Close one; an orphan's loop is gone. `for_good`: its loop ends, and with it all that may still be at work."""

    def here(self) -> T | None:
        """That of the running loop if it is open."""
        return self._places.get(asyncio.get_running_loop())

    async def get(self, *, migrate: bool = True) -> T:
        """That of the running loop, opened by the first who asks."""
        loop = asyncio.get_running_loop()
        while (one := self._places.get(loop)) is None:  # it may have been closed again since it was opened
            opening = self._opening.get(loop)
            if opening is None:
                opening = loop.create_task(self._open(loop, migrate), name="perdure open")
                self._opening[loop] = opening
            # a caller that is cancelled must not cancel the opening for the others
            await asyncio.shield(opening)
        return one

    async def close(self) -> None:
        """Close that of the running loop, and those of loops that are gone."""
        loop = asyncio.get_running_loop()
        opening = self._opening.get(loop)
        if opening is not None:
            await asyncio.wait([opening])
        await self._end(loop)
        await self._sweep()

    def abandon(self) -> None:
        """Forget everything without touching it: these connections belong to the process we were forked from."""
        _abandoned.append((self._places, self._guardians, self._opening))
        self._places, self._guardians, self._opening = {}, {}, {}

    async def _open(self, loop: asyncio.AbstractEventLoop, migrate: bool) -> T:
        try:
            await self._sweep()
            one = await self._make(migrate)
            self._guardians[loop] = guardian = self._guard(loop, one)
            await anext(guardian)
            self._places[loop] = one
            return one
        finally:
            self._opening.pop(loop, None)

    async def _guard(self, loop: asyncio.AbstractEventLoop, one: T) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._places.get(loop) is one:  # else it was closed, and another may be open by now
                self._guardians.pop(loop, None)
                del self._places[loop]
                await self._free(one, orphan=False, for_good=True)

    async def _end(self, loop: asyncio.AbstractEventLoop, *, for_good: bool = False) -> None:
        guardian = self._guardians.pop(loop, None)
        one = self._places.pop(loop, None)
        try:
            if one is not None:
                await self._free(one, orphan=False, for_good=for_good)
        finally:
            if guardian is not None:
                await guardian.aclose()

    async def _sweep(self) -> None:
        for loop in [loop for loop in self._places if loop.is_closed()]:
            one = self._places.pop(loop)
            self._guardians.pop(loop, None)
            with suppress(Exception):
                await self._free(one, orphan=True)


_known: WeakSet[PerLoop[Any]] = WeakSet()
_abandoned: list[Any] = []


@atexit.register
def _close_all() -> None:
    for each in list(_known):
        for loop, one in list(each._places.items()):
            if not loop.is_running():
                with suppress(Exception):
                    if loop.is_closed():
                        asyncio.run(each._free(one, orphan=True))
                    else:
                        loop.run_until_complete(each._end(loop, for_good=True))


def _after_fork() -> None:
    for each in list(_known):
        each.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
