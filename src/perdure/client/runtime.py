"""What an app has in each event loop: an open store, its group commit and its job watcher, and the outbox if it has one.

The outbox is apart from the store: a caller's transaction is served while the store is out of reach, and the store is
served while the outbox is. Nothing opens before the first verb, and everything opens once, however many verbs ask at the
same time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PerdureError, StoreError, StoreMisconfigured
from ..observe import log
from ..settings import DEFAULT_URL, URL_VARIABLE, Settings
from .group_commit import GroupCommit
from .job_watcher import JobWatcher
from .per_loop import PerLoop

if TYPE_CHECKING:
    from ..storage.contract import QueueCapacity, Storage
    from ..storage.migrations import Ledger, Migration
    from ..storage.outbox import Outbox

OUTBOX_WITHIN = 3.0  # seconds that the first verb waits for the table of the outbox


class LoopRuntime:
    """One event loop's share of an app."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.group_commit = GroupCommit(storage)
        self.watcher = JobWatcher(storage)
        self.capacities: dict[str, QueueCapacity] = {}  # of bounded queues, as counted lately
        self.counted_until = 0.0
        self.users = 0  # workers, claims and enqueues that are at work with its store
        self._closed = False

    async def close(self) -> None:
        """Stop watching. The store stays open while somebody uses it; the last user closes it."""
        self._closed = True
        await self.watcher.close()
        await self.group_commit.close()
        if not self.users:
            await self.storage.close()

    def acquire(self) -> None:
        """Keep the store open until `release`."""
        self.users += 1

    async def release(self) -> None:
        if self.release_nowait():
            await self.storage.close()

    def release_nowait(self) -> bool:
        """`release` without waiting. True: the caller has to close the store."""
        self.users -= 1
        return self._closed and not self.users


class LoopRuntimes(PerLoop[LoopRuntime]):
    """The loop runtimes of one app, by event loop."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._open_store: Callable[[], Storage] | None = None
        self._one_opener = threading.Lock()
        self.outboxes = None if settings.outbox is None else Outboxes(settings.outbox, settings)

    @property
    def url(self) -> str:
        if self._settings.url is not None:
            return self._settings.url
        return os.environ.get(URL_VARIABLE) or DEFAULT_URL

    @cached_property
    def file(self) -> Path | None:
        """The file behind the URL, if it is one."""
        from ..storage.urls import parse

        path = parse(self.url).path
        return None if path is None else path.absolute()

    @cached_property
    def in_memory(self) -> bool:
        """Whether the store lives in its opener and in nothing else."""
        from ..storage.urls import parse

        return self.file is None and parse(self.url).server is None

    async def migrate(self) -> None:
        """Bring the schema of the store, and of the outbox, up to date."""
        from ..storage.urls import ledger, outbox_ledger

        if self.in_memory:
            await self.get()
        else:
            await asyncio.to_thread(_migrate, ledger, self.url)
        if self._settings.outbox is not None:
            await asyncio.to_thread(_migrate, outbox_ledger, self._settings.outbox)

    async def close(self) -> None:
        if self.outboxes is not None:
            await self.outboxes.close()
        await super().close()

    def abandon(self) -> None:
        super().abandon()
        self._one_opener = threading.Lock()  # somebody in the parent may have held it

    async def _make(self, migrate: bool) -> LoopRuntime:
        try:
            storage = self._opener(migrate)()
        except StoreError as error:  # the store was not asked yet: its URL is wrong, or its library is missing
            raise StoreMisconfigured(str(error)) from error
        await _open(storage)
        if self.outboxes is not None and migrate and self._settings.migrate:
            await self.outboxes.prepare()
        return LoopRuntime(storage)

    async def _free(self, one: LoopRuntime, *, orphan: bool, for_good: bool = False) -> None:
        if for_good:  # whoever was at work with it has ended with the loop
            one.users = 0
        await (one.storage if orphan else one).close()

    def _opener(self, migrate: bool) -> Callable[[], Storage]:
        if not migrate and self._settings.migrate and not self.in_memory:
            return self._made(migrate=False)
        with self._one_opener:  # the first verbs may come from several threads
            if self._open_store is None:
                # kept, because a memory store lives in it
                self._open_store = self._made(migrate=self._settings.migrate)
            return self._open_store

    def _made(self, *, migrate: bool) -> Callable[[], Storage]:
        from ..storage.urls import opener

        return opener(self.url, clock=self._settings.clock, durability=self._settings.durability, migrate=migrate)


class Outboxes(PerLoop["Outbox"]):
    """The outbox of one app, by event loop."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__()
        self._url = url
        self._settings = settings

    async def prepare(self) -> None:
        """See to it that the table is there before a caller's transaction asks for it. A verb that needs no outbox does not
        fail for the want of one."""
        try:
            async with asyncio.timeout(OUTBOX_WITHIN):
                await self.get()
        except (PerdureError, OSError) as error:  # a timeout is one, too
            log.outbox_not_ready(error)

    async def _make(self, migrate: bool) -> Outbox:
        from ..storage.urls import outbox_opener

        outbox = outbox_opener(self._url, clock=self._settings.clock, migrate=self._settings.migrate)()
        await _open(outbox)
        return outbox

    async def _free(self, one: Outbox, *, orphan: bool, for_good: bool = False) -> None:
        await one.close()


def _migrate(ledger_of: Callable[[str], tuple[Ledger, list[Migration], Callable[[], None]]], url: str) -> None:
    from ..storage.migrations import up

    try:
        ledger, migrations, close = ledger_of(url)
        try:
            up(ledger, migrations)
        finally:
            close()
    except PerdureError:
        raise
    except Exception as error:
        raise StoreError(f"the store cannot be migrated: {error}") from error


async def _open(storage: Storage | Outbox) -> None:
    try:
        await storage.open()
    except PerdureError:
        raise
    except Exception as error:
        raise StoreError(f"the {storage.name} store cannot be opened: {error}") from error
