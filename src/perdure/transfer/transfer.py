"""The transfer itself: check, bring the source to rest, copy everything, and verify that it has arrived.

Everything is read in one order and written under its own id, and replaces what was there. So a transfer that was killed is
simply repeated: what has arrived is passed over, and nothing is there twice.

The source is only read and paused, and edges that wait to be resolved are resolved there. It stays paused after a success,
because its jobs run at the target from now on. After a failure it goes on as before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..core.ids import new_id
from ..core.record import Record
from ..errors import StoreError
from ..storage.contract import Storage, WorkerRow
from .checksum import Checksum, Told, tally
from .entities import JOBS, REST, THINGS, Entity
from .quiesce import ALIVE, SIGN, Quiesce, reason_busy


@dataclass(frozen=True)
class Counted:
    """One kind of thing, on both sides."""

    name: str
    source: Checksum
    target: Checksum

    @property
    def equal(self) -> bool:
        return self.source == self.target


@dataclass(frozen=True)
class Moved:
    """What was carried, and which queues wait at the target to be resumed."""

    counted: tuple[Counted, ...]
    already_there: int  # jobs that an earlier run had carried
    paused: tuple[str, ...]


@dataclass(frozen=True)
class Outlook:
    """What would be copied, and what is in the way."""

    counted: tuple[tuple[str, Checksum], ...]
    already_there: int
    hindrances: tuple[str, ...]


async def move(source: Storage, target: Storage, told: Told, *, wait: float = 0) -> Moved:
    """Copy everything. StoreError says what is in the way; the source goes on as before then."""
    await _refuse_the_same(source, target)
    await _refuse_in_use(target)
    already_there = await _fitting(source, target, told)
    stillness = Quiesce(source, target)
    try:
        await stillness.begin(wait, told)
        for thing in REST:
            await _carry(thing, source, target, told, again=already_there > 0)
        counted = tuple([await _counted(thing, source, target, told) for thing in THINGS])
        _refuse_a_difference(counted)
        await stillness.stay()
    except BaseException:
        with suppress(StoreError, OSError):  # the first error is raised
            await asyncio.shield(stillness.give_up())
        raise
    paused = tuple(row.settings.name for row in await target.queues() if row.settings.paused)
    return Moved(counted, already_there, paused)


async def look_ahead(source: Storage, target: Storage | None, told: Told) -> Outlook:
    """What a move would do. Nothing is written; a target that is not there yet is None."""
    found = [("the source is in use: {}", await reason_busy(source))]
    already_there = 0
    if target is not None:
        found.append(("the target is in use: {}", await reason_busy(target)))
        try:
            already_there = await _fitting(source, target, told)
        except StoreError as error:
            found.append(("{}", str(error)))
    counted = tuple([(thing.name, await tally(thing, source, f"counting {thing.name}", told)) for thing in THINGS])
    return Outlook(counted, already_there, tuple(text.format(what) for text, what in found if what is not None))


# ---- before ----------------------------------------------------------------------------------------
async def _refuse_the_same(source: Storage, target: Storage) -> None:
    """Two addresses may lead to one store: a heartbeat that is sent to one would be seen at the other."""
    sign = f"{SIGN}{new_id()}"
    await target.heartbeat(WorkerRow(sign, await target.now(), 0, 0, "{}"))
    try:
        seen = {row.id for row in await source.workers(ALIVE)}
    finally:
        await target.remove_worker(sign)
    if sign in seen:
        raise StoreError("source and target are the same store: both addresses lead to it")


async def _refuse_in_use(target: Storage) -> None:
    found = await reason_busy(target)
    if found is not None:
        raise StoreError(f"the target is in use: {found}; stop its workers until everything has arrived")


async def _fitting(source: Storage, target: Storage, told: Told) -> int:
    """How many jobs an earlier run has carried. StoreError when the target holds any other."""
    already_there, size = 0, await JOBS.size(target)
    async for page in JOBS.pages(target):
        known = await source.get([job.record.id for job in page])
        for job, ours in zip(page, known, strict=True):
            _refuse_foreign(job.record, ours)
        already_there += len(page)
        told("looking at the target", already_there, size)
    return already_there


def _refuse_foreign(there: Record, here: Record | None) -> None:
    if here is None:
        raise StoreError(
            f"the target holds jobs of its own, such as {there.id} ({there.task}), which the source does not have: "
            "only an empty store, or one that an interrupted move of this source has begun to fill, can be moved to"
        )
    if there.version > here.version or there.attempt > here.attempt:
        raise StoreError(
            f"job {there.id} ({there.task}) has been worked on at the target since it was carried: "
            "the move cannot be made again; empty the target first if its work does not count"
        )


# ---- carrying --------------------------------------------------------------------------------------
async def _carry(thing: Entity[Any], source: Storage, target: Storage, told: Told, *, again: bool) -> None:
    done, size = 0, await thing.size(source)
    async for page in thing.pages(source):
        await thing.bring(target, await thing.missing(target, page) if again else page)
        done += len(page)
        told(f"carrying {thing.name}", done, size)


# ---- after -----------------------------------------------------------------------------------------
async def _counted(thing: Entity[Any], source: Storage, target: Storage, told: Told) -> Counted:
    here = await tally(thing, source, f"counting {thing.name} at the source", told)
    there = await tally(thing, target, f"counting {thing.name} at the target", told, like=here)
    return Counted(thing.name, here, there)


def _refuse_a_difference(counted: tuple[Counted, ...]) -> None:
    for each in counted:
        if not each.equal:
            raise StoreError(
                f"source and target differ: {each.source.total} {each.name} with checksum {each.source.checksum:016x} here, "
                f"{each.target.total} with {each.target.checksum:016x} there; somebody has enqueued or worked meanwhile: "
                "stop whoever uses the two stores and promote again"
            )
