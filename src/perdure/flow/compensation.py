"""Compensation: calls that a handler registers for the case that its job dies.

They are stored as kv entries as soon as they are registered, so that they count in later attempts and when the worker
dies. The change that makes the job dead also enqueues them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from ..core.ids import new_id
from ..core.job import State
from ..core.lifecycle import Change
from ..core.record import NewJob
from ..storage.contract import KvWrite, Storage
from .kept_texts import read_or_log
from .steps import UNDO, name_of


def undo_write(job_id: str, undo: NewJob) -> KvWrite:
    """The write that stores a call for the case that the job dies; the same call once."""
    mark = hashlib.sha256(f"{undo.task}\0{undo.payload}".encode()).hexdigest()[:32]
    return KvWrite(UNDO, name_of(job_id, mark), msgspec.json.encode(undo).decode(), job=job_id)


async def add_undos(storage: Storage, changes: Sequence[Change]) -> list[Change]:
    """The changes, those that make a job dead with the calls that undo it."""
    return [await add_undo(storage, change) if change.state is State.DEAD else change for change in changes]


async def add_undo(storage: Storage, change: Change, registered: Sequence[NewJob] = ()) -> Change:
    """The change with the calls that are stored, and those just registered in case they could not be stored."""
    kept = [
        undo for row in await storage.kv_read(UNDO, job=change.id) if (undo := read_or_log(row, NewJob)) is not None
    ]
    undos = {(job.task, job.payload): job for job in [*registered, *kept]}
    last_first = sorted(undos.values(), key=lambda job: job.id, reverse=True)
    adds = tuple(msgspec.structs.replace(job, id=new_id()) for job in last_first)
    return msgspec.structs.replace(change, adds=(*change.adds, *adds)) if adds else change
