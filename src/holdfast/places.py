"""What an app has in each event loop: an open store, a gatherer of single enqueues, a lookout.

Nothing opens before the first verb. The store of a loop is opened once, however many verbs ask at the same time, and is
closed with the app, with its loop (`asyncio.run` ends its async generators first: one of ours waits there), or at exit.
A forked child leaves its parent's connections alone and opens its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .errors import HoldfastError, StoreError
from .gatherer import Gatherer
from .lookout import Lookout
from .settings import DEFAULT_URL, URL_VARIABLE, Settings

if TYPE_CHECKING:
    from .storage.contract import Storage


class Place:
    """One event loop's share of an app."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.gatherer = Gatherer(storage)
        self.lookout = Lookout(storage)
        self.rooms: dict[str, int] = {}  # of bounded queues, as counted lately
        self.counted_until = 0.0
        self.guardian: AsyncGenerator[None, None] | None = None

    async def close(self) -> None:
        await self.lookout.close()
        await self.gatherer.close()
        await self.storage.close()


class Places:
    """The places of one app, by event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open_store: Callable[[], Storage] | None = None
        self._places: dict[asyncio.AbstractEventLoop, Place] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Place]] = {}
        _known.add(self)

    @property
    def url(self) -> str:
        return self._settings.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL

    @cached_property
    def file(self) -> Path | None:
        """The file behind the URL, if it is one."""
        from .storage.urls import parse

        path = parse(self.url).path
        return None if path is None else path.absolute()

    @cached_property
    def in_memory(self) -> bool:
        """Whether the store lives in its opener and in nothing else."""
        from .storage.urls import parse

        return self.file is None and parse(self.url).server is None

    def here(self) -> Place | None:
        """The place of the running loop if it is open."""
        return self._places.get(asyncio.get_running_loop())

    async def get(self, *, migrate: bool = True) -> Place:
        """The place of the running loop, opened by the first who asks."""
        loop = asyncio.get_running_loop()
        place = self._places.get(loop)
        if place is not None:
            return place
        opening = self._opening.get(loop)
        if opening is None:
            opening = loop.create_task(self._opened(loop, migrate), name="holdfast open")
            self._opening[loop] = opening
        # a caller who gives up must not take the others' store away
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close the store of the running loop, and those of loops that are gone."""
        loop = asyncio.get_running_loop()
        opening = self._opening.get(loop)
        if opening is not None:
            await asyncio.wait([opening])
        place = self._places.get(loop)
        if place is not None:
            await self._end(loop, place)
        await self._sweep()

    def abandon(self) -> None:
        """Forget everything without touching it: these connections belong to the process we were forked from."""
        _abandoned.append((self._places, self._opening))
        self._places, self._opening = {}, {}

    async def _opened(self, loop: asyncio.AbstractEventLoop, migrate: bool) -> Place:
        try:
            await self._sweep()
            storage = self._opener(migrate)()
            await _open(storage)
            place = Place(storage)
            place.guardian = self._guard(loop, place)
            await anext(place.guardian)
            self._places[loop] = place
            return place
        finally:
            self._opening.pop(loop, None)

    def _opener(self, migrate: bool) -> Callable[[], Storage]:
        if not migrate and self._settings.migrate and not self.in_memory:
            return self._made(migrate=False)
        if self._open_store is None:
            # kept, because a memory store lives in it
            self._open_store = self._made(migrate=self._settings.migrate)
        return self._open_store

    def _made(self, *, migrate: bool) -> Callable[[], Storage]:
        from .storage.urls import opener

        return opener(self.url, clock=self._settings.clock, durability=self._settings.durability, migrate=migrate)

    async def _guard(self, loop: asyncio.AbstractEventLoop, place: Place) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._places.pop(loop, None) is not None:
                await place.close()

    async def _end(self, loop: asyncio.AbstractEventLoop, place: Place) -> None:
        self._places.pop(loop, None)
        try:
            await place.close()
        finally:
            if place.guardian is not None:
                await place.guardian.aclose()

    async def _sweep(self) -> None:
        for loop in [loop for loop in self._places if loop.is_closed()]:
            place = self._places.pop(loop)
            with suppress(Exception):
                await place.storage.close()


async def _open(storage: Storage) -> None:
    try:
        await storage.open()
    except HoldfastError:
        raise
    except Exception as error:
        raise StoreError(f"the {storage.name} store cannot be opened: {error}") from error


_known: WeakSet[Places] = WeakSet()
_abandoned: list[Any] = []


@atexit.register
def _close_all() -> None:
    for places in list(_known):
        for loop, place in list(places._places.items()):
            if not loop.is_running():
                with suppress(Exception):
                    if loop.is_closed():
                        asyncio.run(place.storage.close())
                    else:
                        loop.run_until_complete(places._end(loop, place))


def _after_fork() -> None:
    for places in list(_known):
        places.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
