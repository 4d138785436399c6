"""Helpers for cases about flows: followers, states, and resolving edges."""

from __future__ import annotations

import json
from typing import Any

from perdure.core.job import State
from perdure.core.record import NewJob
from perdure.storage.contract import Storage

from ..tools import job, read_job


def after(*parents: Any, **fields: Any) -> NewJob:
    """A new job that waits for these."""
    return job(after=json.dumps([parent.id for parent in parents]), waits=len(parents), **fields)


async def states_of(store: Storage, *jobs: Any) -> list[State]:
    return [(await read_job(store, each.id)).state for each in jobs]


async def resolve_all(store: Storage) -> None:
    while await store.resolve_edges(500):
        pass
