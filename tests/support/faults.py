"""Verbs of a real store that fail or wait when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from perdure.storage.contract import Storage

from .waiting import eventually

QUIET = 0.3  # seconds without a question: who has found nothing sleeps


class Gate:
    """Holds back calls of one verb of a store until it is opened."""

    def __init__(self, store: Storage, verb: str, monkeypatch) -> None:
        self.reached, self.opened, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._call = getattr(store, verb)
        monkeypatch.setattr(store, verb, self._slowly)

    async def _slowly(self, *arguments, **options):
        self.reached.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return await self._call(*arguments, **options)


class Claims:
    """Notes when workers ask this store for jobs, from before they start."""

    def __init__(self, store: Storage, monkeypatch) -> None:
        self._call = store.exchange
        self._last: float | None = None
        self._under_way = 0
        monkeypatch.setattr(store, "exchange", self._noted)

    async def _noted(self, changes, claim=None, started=()):
        self._under_way += 1
        try:
            return await self._call(changes, claim, started)
        finally:
            self._under_way -= 1
            if claim is not None:
                self._last = time.monotonic()

    async def cease(self) -> None:
        """They have asked, and ask no more: they wait for a signal or for the time of their next poll."""
        await eventually(lambda: self._last and not self._under_way and time.monotonic() - self._last > QUIET)


class Fault:
    """Lets the next calls of one verb fail, one for each error: all of them, or those for which `when` says so of their
    first argument."""

    def __init__(
        self, store: Storage, verb: str, monkeypatch, *errors: Exception, when: Callable[[Any], bool] | None = None
    ) -> None:
        self.left = list(errors)
        self._when = when
        self._call = getattr(store, verb)
        monkeypatch.setattr(store, verb, self._broken)

    async def _broken(self, *arguments, **options):
        if self.left and (self._when is None or self._when(arguments[0])):
            raise self.left.pop(0)
        return await self._call(*arguments, **options)

    async def over(self) -> None:
        await eventually(lambda: not self.left)
