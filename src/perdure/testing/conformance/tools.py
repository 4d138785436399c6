"""Short forms for the cases: jobs to enqueue, claims, and comparisons that say which promise was broken."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from perdure.core.backoff import DEFAULT_BACKOFF
from perdure.core.clock import SECOND
from perdure.core.ids import new_id, new_stamp
from perdure.core.lifecycle import Report, decide
from perdure.core.record import Fault, NewJob, Record
from perdure.core.retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION, Retention
from perdure.errors import StoreError
from perdure.storage.contract import Claim, Refusal, Storage, StoreTransaction, Verdict, Want

LEASE = 60 * SECOND
LONG_ENOUGH = 3600 * SECOND  # contact that is enough to reap any lease here
FORGET = Retention.delete().text()


class Hand(Protocol):
    """The hand on the store's clock."""

    def advance(self, seconds: float, /) -> None: ...


class NotOffered(Exception):
    """The store declines what the contract lets it decline."""


def job(**fields: Any) -> NewJob:
    """A new job; what is not given is as plain as can be."""
    plain = {
        "id": new_id(),
        "task": "task",
        "payload": "{}",
        "backoff": DEFAULT_BACKOFF.text(),
        "retention": DEFAULT_RETENTION.text(),
        "dead_retention": DEFAULT_DEAD_RETENTION.text(),
    }
    return NewJob(**{**plain, **fields})


def unique(scope: str, key: str = "k", **fields: Any) -> NewJob:
    """A job under a unique key."""
    return job(unique_key=key, unique_scope=scope, **fields)


async def claim(store: Storage, limit: int = 1, worker: str = "w1", **want: Any) -> list[Record]:
    """Claim under a fresh stamp."""
    return await store.claim(Claim(worker, new_stamp(), (Want(limit, **want),)))


async def running(store: Storage, worker: str = "w1", **fields: Any) -> Record:
    """A job that has just been enqueued and claimed."""
    new = job(**fields)
    await store.enqueue([new])
    claimed = await claim(store, 1000, worker)
    return next(record for record in claimed if record.id == new.id)


async def seen(store: Storage, id: str) -> Record:
    """The row as it stands; it must be there."""
    record = (await store.get([id]))[0]
    if record is None:
        raise AssertionError(f"get: the job {id} is gone, it must be on record")
    return record


async def say(store: Storage, record: Record, said: Report) -> Verdict:
    """Decide on the record as it was seen, and apply."""
    return (await store.apply([decide(record, said)]))[0]


async def told(store: Storage, id: str, said: Report) -> Record:
    """Decide on the row as it stands, apply, expect it accepted, and give the row afterwards."""
    accepted(await say(store, await seen(store, id), said), f"a rightful {type(said).__name__}")
    return await seen(store, id)


async def begin(store: Storage, longest: int = 5 * SECOND) -> StoreTransaction:
    """A handler's transaction, if the store has them."""
    try:
        return await store.begin_transaction(longest)
    except StoreError as error:
        raise NotOffered(str(error)) from None


def fault(message: str = "it broke") -> Fault:
    return Fault(1, "w1", 1, 2, "ValueError", message, None)


def ids(records: Any) -> list[str]:
    return [record.id for record in records]


def same(found: Any, wanted: Any, promise: str) -> None:
    if found != wanted:
        raise AssertionError(f"{promise}\n  found:  {_shown(found)}\n  wanted: {_shown(wanted)}")


def true(held: bool, promise: str) -> None:
    if not held:
        raise AssertionError(promise)


def accepted(verdict: Verdict, what: str) -> None:
    if not verdict.accepted or verdict.repeated:
        raise AssertionError(f"{what} must be accepted; the answer was {_shown(verdict)}")


def repeated(verdict: Verdict, what: str) -> None:
    if not verdict.repeated or not verdict.accepted:
        raise AssertionError(f"{what} must be answered as repeated; the answer was {_shown(verdict)}")


def refused(verdict: Verdict, why: Refusal, what: str) -> None:
    if verdict.refusal is not why:
        raise AssertionError(f"{what} must be refused as {why}; the answer was {_shown(verdict)}")


def untouched(before: Record, after: Record, what: str) -> None:
    """Every field is as it was."""
    differences = {
        name: (getattr(before, name), getattr(after, name))
        for name in Record.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    }
    if differences:
        raise AssertionError(f"{what} must leave the row as it is; it changed {differences}")


def changed(before: Record, after: Record, what: str, **fields: Any) -> None:
    """These fields have these values now, and every other one is as it was."""
    untouched(msgspec.structs.replace(before, **fields), after, f"{what} (beyond {', '.join(fields)})")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 600 else f"{text[:600]}… ({len(text)} characters)"
