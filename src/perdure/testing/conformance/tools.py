"""Helpers for the cases: make jobs, claim them, report on them, and assert promises."""

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
LONG_ENOUGH = 3600 * SECOND  # a contact that is long enough to reap every lease in the cases
FORGET = Retention.delete().text()


class MovableClock(Protocol):
    """The store's clock, moved by the test."""

    def advance(self, seconds: float, /) -> None: ...


class NotOffered(Exception):
    """The store does not offer something that the contract makes optional."""


def job(**fields: Any) -> NewJob:
    """A new job with these fields, and defaults for all others."""
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
    """A new job with a unique key."""
    return job(unique_key=key, unique_scope=scope, **fields)


async def claim(store: Storage, limit: int = 1, worker: str = "w1", **want: Any) -> list[Record]:
    """Claim jobs with a new stamp."""
    return await store.claim(Claim(worker, new_stamp(), (Want(limit, **want),)))


async def enqueue_and_claim(store: Storage, worker: str = "w1", **fields: Any) -> Record:
    """Enqueue a job, claim it, and return its record."""
    new = job(**fields)
    await store.enqueue([new])
    claimed = await claim(store, 1000, worker)
    return next(record for record in claimed if record.id == new.id)


async def read_job(store: Storage, id: str) -> Record:
    """Read a job that must exist."""
    record = (await store.get([id]))[0]
    if record is None:
        raise AssertionError(f"get: job {id} must exist")
    return record


async def apply_report(store: Storage, record: Record, reported: Report) -> Verdict:
    """Decide about this record, which may be old, and apply the change."""
    return (await store.apply([decide(record, reported)]))[0]


async def report(store: Storage, id: str, reported: Report) -> Record:
    """Read a job, report on it, assert that the store accepts the change, and return the new record."""
    assert_accepted(
        await apply_report(store, await read_job(store, id), reported), f"a rightful {type(reported).__name__}"
    )
    return await read_job(store, id)


async def begin(store: Storage, longest: int = 5 * SECOND) -> StoreTransaction:
    """Begin a handler's transaction. Raise NotOffered if the store has none."""
    try:
        return await store.begin_transaction(longest)
    except StoreError as error:
        raise NotOffered(str(error)) from None


def fault(message: str = "it broke") -> Fault:
    return Fault(1, "w1", 1, 2, "ValueError", message, None)


def ids(records: Any) -> list[str]:
    return [record.id for record in records]


def assert_equal(found: Any, wanted: Any, promise: str) -> None:
    if found != wanted:
        raise AssertionError(f"{promise}\n  found:  {_shorten(found)}\n  wanted: {_shorten(wanted)}")


def assert_true(held: bool, promise: str) -> None:
    if not held:
        raise AssertionError(promise)


def assert_accepted(verdict: Verdict, what: str) -> None:
    if not verdict.accepted or verdict.repeated:
        raise AssertionError(f"{what} must be accepted; the answer was {_shorten(verdict)}")


def assert_repeated(verdict: Verdict, what: str) -> None:
    if not verdict.repeated or not verdict.accepted:
        raise AssertionError(f"{what} must be answered as repeated; the answer was {_shorten(verdict)}")


def assert_refused(verdict: Verdict, why: Refusal, what: str) -> None:
    if verdict.refusal is not why:
        raise AssertionError(f"{what} must be refused as {why}; the answer was {_shorten(verdict)}")


def assert_unchanged(before: Record, after: Record, what: str) -> None:
    """Assert that no field changed."""
    differences = {
        name: (getattr(before, name), getattr(after, name))
        for name in Record.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    }
    if differences:
        raise AssertionError(f"{what} must leave the row as it is; it changed {differences}")


def assert_changed_only(before: Record, after: Record, what: str, **fields: Any) -> None:
    """Assert that these fields have these values, and that no other field changed."""
    assert_unchanged(msgspec.structs.replace(before, **fields), after, f"{what} (beyond {', '.join(fields)})")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 600 else f"{text[:600]}… ({len(text)} characters)"
