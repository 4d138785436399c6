"""Verbs of a real store that fail or wait when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from perdure.storage.contract import Storage


class Gate:
    """Holds back calls of one verb of a store until it is opened."""

    def __init__(self, store: Storage, verb: str, monkeypatch) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self._call = getattr(store, verb)
        monkeypatch.setattr(store, verb, self._slowly)

    async def _slowly(self, *arguments, **options):
        self.reached.set()
        await self.opened.wait()
        return await self._call(*arguments, **options)


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
        async with asyncio.timeout(10):
            while self.left:
                await asyncio.sleep(0.005)
