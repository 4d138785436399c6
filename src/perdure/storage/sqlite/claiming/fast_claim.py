"""Fast path: claims ordinary jobs of one lane or gate by reading only their ids, creation times and payloads.

An ordinary job was never tried before, has the policy that the best job of its lane had when that was last read, and has the
defaults in all rare fields. The statement itself compares each job with that; all others are read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from uuid import UUID

import msgspec

from perdure.core.job import State
from perdure.core.record import Record, defaults_of
from perdure.storage.contract import Claim
from perdure.storage.rules import fast_path
from perdure.storage.rules.fast_path import expand_records
from perdure.storage.rules.unreadable import flaw_of

from ..connection.work import Work
from ..queries import load
from ..reading.records import MAY_RUN, POLICY, WHOLE, Flawed, lists_of, literal
from ..writing.policies import number_of, policy_of
from .claimed_rows import NO_ROWS, ClaimedRows, Source, by_number

_NO_ID = str(UUID(int=0))
SEPARATOR = "\x1e"  # which no JSON has in it
MOST_HEADS = 1_000  # lanes whose heads are remembered

# fields that each job has its own value of, that the head of the lane has in common with it, and that a claim writes
_OWN = ("id", "payload", "created_at", "run_at", "rank")
_COMMON = ("task", "queue", "routing_key", "limits", "priority", "lease", *POLICY)
_CLAIMED = ("state", "version", "attempt", "stamp", "leased_by", "leased_until", "parked")


def _is_ordinary() -> str:
    """Whether a row is an ordinary job like the head, as an expression."""
    known = {*_OWN, *_COMMON, *_CLAIMED}
    defaults = defaults_of(Record)
    rare = {"failures": 0, "losses": 0} | {name: value for name, value in defaults.items() if name not in known}
    unset = ", ".join(name for name, value in rare.items() if value is None)
    others = [f"{name} = {literal(value)}" for name, value in rare.items() if value is not None]
    first = "version = 1 AND attempt = 0 AND priority = :priority AND policy = :policy AND lease = :lease"
    first += " AND rank = created_at AND run_at = created_at"
    return f"{first} AND coalesce({unset}) IS NULL AND {' AND '.join(others)}"


_sql = load("fast_claim", ordinary=_is_ordinary(), whole=WHOLE, may_run=MAY_RUN)


def try_fast_claim(work: Work, claim: Claim, source: Source, limit: int, now: int) -> ClaimedRows | None:
    """The best jobs of a lane or gate. None: read them by the general path."""
    head = _head_of(work, source) if fast_path.enabled() else None
    if head is None:
        return None
    parameters = source._asdict() | {
        "priority": head.priority,
        "policy": number_of(policy_of(head)),
        "lease": head.lease,
        "now": now,
        "limit": limit,
    }
    statement = _sql["best"].replace("{source}", source.condition)
    numbers, shorts_text, payloads_text = work.connection.rows(statement, parameters)[0]
    if shorts_text is None:
        return None
    try:
        shorts, payloads = shorts_text.decode().split(SEPARATOR), payloads_text.decode().split(SEPARATOR)
    except UnicodeDecodeError:  # written by hand
        return None
    if len(shorts) != len(payloads):
        return None
    others = NO_ROWS
    if "" in shorts:
        special = [number for number, short in zip(lists_of(numbers), shorts, strict=True) if not short]
        others = by_number(work, claim, special, now)
        if 2 * len(special) > len(shorts):
            del work.hints.heads[source]  # most jobs are unlike this head
    read = partial(_records, _once_claimed(head, claim, now), shorts, payloads, others.records)
    return ClaimedRows(numbers, read)


def _records(
    head: Record, shorts: Sequence[str], payloads: Sequence[str], read_others: Callable[[], list[Record]]
) -> list[Record]:
    """The records of ordinary jobs (`shorts`: when each was created, and its id) and of the others ("") in their order."""
    try:
        if "" not in shorts:
            return expand_records(head, shorts, payloads)
        own = [payload for payload, short in zip(payloads, shorts, strict=True) if short]
        ordinary = iter(expand_records(head, [*filter(None, shorts)], own))
        others = iter(read_others())
        return [record for short in shorts for record in islice(ordinary if short else others, 1)]
    except ValueError as error:
        raise Flawed(str(error)) from None


def _head_of(work: Work, source: Source) -> Record | None:
    """A job like the best of the lane was when it was last read. That may be long ago: each job is compared with it."""
    heads = work.hints.heads
    if source not in heads:
        found = work.connection.rows(_sql["head"].replace("{source}", source.condition), source._asdict())
        if not found:
            return None
        if len(heads) >= MOST_HEADS:
            heads.clear()
        priority, lease, max_attempts, timeout, backoff, retention, dead_retention = found[0]
        head = Record(
            id=_NO_ID, task=source.task, queue=source.queue, state=State.READY, priority=priority, rank=0, payload="",
            version=1, attempt=0, failures=0, losses=0, max_attempts=max_attempts, timeout=timeout, lease=lease,
            backoff=backoff, retention=retention, dead_retention=dead_retention, created_at=0, run_at=0,
            routing_key=source.routing_key, limits=source.limits,
        )  # fmt: skip
        if None in found[0][4:] or flaw_of(head) is not None:
            return None
        heads[source] = head
    return heads[source]


def _once_claimed(head: Record, claim: Claim, now: int) -> Record:
    record = msgspec.structs.replace(head)
    record.state, record.version, record.attempt = State.RUNNING, 2, 1
    record.stamp, record.leased_by, record.leased_until = claim.stamp, claim.worker, now + record.lease
    return record
