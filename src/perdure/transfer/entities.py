"""The kinds of data that a transfer copies. A new kind is a class here and an entry in REST.

A kind has four verbs: read all entries page by page, store some of them, count them by groups, and encode each for the
checksum. Queues are copied first, before the source is paused, because their settings at the target tell a second run
which queues were paused before the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ..storage.contract import Filter, JobDump, KeptKey, KvEntry, QueueSettings, Storage

T = TypeVar("T")
Position = tuple[int, str] | None

FIRST_PAGE, GROWTH = 10, 4  # jobs; a page may be so many times the last one
PAGE_BYTES = 4 << 20
_encode = msgspec.msgpack.Encoder().encode


class Entity(ABC, Generic[T]):
    """One kind of what a store holds."""

    name: str  # of many of them, in messages
    few: bool = True  # few enough to compare them in memory; the target may then have others of its own

    @abstractmethod
    def pages(self, store: Storage) -> AsyncIterator[list[T]]:
        """All there are."""

    @abstractmethod
    async def bring(self, store: Storage, things: Sequence[T]) -> None:
        """Store them as they are; harmless when they are there already."""

    async def missing(self, store: Storage, things: list[T]) -> list[T]:
        """Those of a page that are not there, or not so."""
        return things

    async def size(self, store: Storage) -> int:
        """About how many there are, for a progress bar; 0: too few to matter."""
        return 0

    def counted_by(self, thing: T) -> tuple[str, ...]:
        """The group in which an entry is counted."""
        return ()

    @abstractmethod
    def text(self, thing: T) -> bytes:
        """All of it, the same for every store."""


class Queues(Entity[QueueSettings]):
    """Queues and their settings. The source is paused while it is carried, so the checksum leaves `paused` out."""

    name = "queues"

    async def pages(self, store: Storage) -> AsyncIterator[list[QueueSettings]]:
        yield [row.settings for row in await store.queues()]

    async def bring(self, store: Storage, things: Sequence[QueueSettings]) -> None:
        """What the target says already about a queue being paused stands. It is written first: half a queue would be taken
        for one that was not paused."""
        known = {row.settings.name for row in await store.queues()}
        for settings in things:
            if settings.name not in known:
                await store.pause(settings.name, settings.paused)
            await store.configure(settings)

    def text(self, thing: QueueSettings) -> bytes:
        return _encode(msgspec.structs.replace(thing, paused=False))


class Jobs(Entity[JobDump]):
    """Jobs in all states, with errors, progress, results, logs and the keys that they hold."""

    name = "jobs"
    few = False

    async def pages(self, store: Storage) -> AsyncIterator[list[JobDump]]:
        """Pages hold as many jobs as the store likes in one go, fewer where they are large."""
        after: Position = None
        limit = FIRST_PAGE
        while page := await store.export(after, limit):
            yield page
            if len(page) < limit:
                return
            after = position(page[-1])
            fitting = PAGE_BYTES * len(page) // max(1, sum(map(weight, page)))
            limit = max(1, min(fitting, limit * GROWTH, store.chunk))

    async def bring(self, store: Storage, things: Sequence[JobDump]) -> None:
        for piece in pieces(things, store.chunk):
            await store.restore(piece)

    async def missing(self, store: Storage, things: list[JobDump]) -> list[JobDump]:
        there = {each.record.id: each for each in await store.export(_before(things[0]), len(things))}
        return [each for each in things if there.get(each.record.id) != each]

    async def size(self, store: Storage) -> int:
        return await store.count(Filter())

    def counted_by(self, thing: JobDump) -> tuple[str, ...]:
        return "hidden" if thing.record.hidden else thing.record.state.value, thing.record.queue

    def text(self, thing: JobDump) -> bytes:
        return _encode(thing)


class Keys(Entity[KeptKey]):
    """Unique keys of scope any and window, which outlive their jobs."""

    name = "kept keys"

    async def pages(self, store: Storage) -> AsyncIterator[list[KeptKey]]:
        page, cursor = await store.export_keys(None, store.chunk)
        yield page
        while cursor is not None:
            page, cursor = await store.export_keys(cursor, store.chunk)
            yield page

    async def bring(self, store: Storage, things: Sequence[KeptKey]) -> None:
        for begin in range(0, len(things), store.chunk):
            await store.restore_keys(things[begin : begin + store.chunk])

    def text(self, thing: KeptKey) -> bytes:
        return _encode(thing)


class KvEntries(Entity[KvEntry]):
    """Kv entries: schedules, subscriptions, steps, answers."""

    name = "kv"

    async def pages(self, store: Storage) -> AsyncIterator[list[KvEntry]]:
        after: tuple[str, str] | None = None
        while page := await store.export_kv(after, store.chunk):
            yield page
            after = (page[-1].kind, page[-1].name)

    async def bring(self, store: Storage, things: Sequence[KvEntry]) -> None:
        for begin in range(0, len(things), store.chunk):
            await store.restore_kv(things[begin : begin + store.chunk])

    def text(self, thing: KvEntry) -> bytes:
        return _encode(thing)


JOBS = Jobs()
QUEUES = Queues()
REST: tuple[Entity[Any], ...] = (JOBS, Keys(), KvEntries())  # copied once the source is at rest
THINGS: tuple[Entity[Any], ...] = (QUEUES, *REST)


def position(job: JobDump) -> tuple[int, str]:
    return job.record.created_at, job.record.id


def _before(job: JobDump) -> tuple[int, str]:
    """A position right before this job: no id of the same instant is less than its own and greater than this."""
    created_at, id = position(job)
    return created_at, _preceding(id)


def _preceding(id: str) -> str:
    number = int(id.replace("-", ""), 16)
    digits = f"{max(0, number - 1):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def weight(job: JobDump) -> int:
    """About how many characters a job has."""
    record = job.record
    texts = (record.payload, record.result, record.progress, record.errors, record.meta, record.reason, *job.lines)
    edges = len(job.waits_for) + len(job.kept_for)
    return 500 + 40 * edges + sum(len(text) for text in texts if text is not None)


def pieces(jobs: Sequence[JobDump], most: int) -> list[list[JobDump]]:
    """Lists of at most so many jobs that are not too large together."""
    found: list[list[JobDump]] = []
    room = 0
    for job in jobs:
        heavy = weight(job)
        if heavy > room or len(found[-1]) == most:
            found.append([])
            room = max(PAGE_BYTES, heavy)
        found[-1].append(job)
        room -= heavy
    return found
