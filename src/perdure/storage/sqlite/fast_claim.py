"""Claiming jobs that are as usual: never tried before, of one policy, with nothing that most jobs do not have.

All that is worth saying of such a job is its id, when it was created, and its payload: a tenth of a record. What they have
in common is known from the best of their lane, and the statement itself looks whether each job is like it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from perdure.core.job import State
from perdure.core.record import ROW_VERSION, Record, defaults_of
from perdure.storage.contract import Claim
from perdure.storage.rules.fast_path import expand_records
from perdure.storage.rules.unreadable import flaw_of

from .enqueue import number_of, policy_of
from .queries import load
from .records import POLICY, WHOLE, Flawed, lists_of, literal, records_of
from .writer import Work

_NO_ID = str(UUID(int=0))
SEPARATOR = "\x1e"  # which no JSON has in it
MOST_LANES = 1_000  # whose heads are remembered

# what is said of each job, what its lane and the head of it say, and what a claim makes anew
_SAID = ("id", "payload", "created_at", "run_at", "rank")
_COMMON = ("task", "queue", "routing_key", "limits", "priority", "lease", *POLICY)
_CLAIMED = ("state", "version", "attempt", "stamp", "leased_by", "leased_until", "parked")

Place = tuple[str | None, str, str, str | None]  # limits of a gate (None: a lane), queue, task, routing key


class Usual(NamedTuple):
    """Claimed jobs on their way to the loop. `others`: those that are not as usual, as `records_of` takes them."""

    record: Record
    numbers: Sequence[int]  # of their rows
    shorts: Sequence[str]  # when it was created and its id, or '' for one of the others
    payloads: Sequence[str]
    others: bytes

    def records(self) -> list[Record]:
        """The records. Flawed, if one of the rows cannot be read."""
        try:
            return self._records()
        except ValueError as error:
            raise Flawed(str(error)) from None

    def _records(self) -> list[Record]:
        if "" not in self.shorts:
            return expand_records(self.record, self.shorts, self.payloads)
        payloads = [payload for payload, short in zip(self.payloads, self.shorts, strict=True) if short]
        usual = iter(expand_records(self.record, [*filter(None, self.shorts)], payloads))
        others = iter(records_of(self.others))
        return [record for short in self.shorts for record in islice(usual if short else others, 1)]


def _usual() -> str:
    """Whether a row is like nearly all others, as an expression."""
    known = {*_SAID, *_COMMON, *_CLAIMED}
    defaults = defaults_of(Record)
    rare = {"failures": 0, "losses": 0} | {name: value for name, value in defaults.items() if name not in known}
    unset = ", ".join(name for name, value in rare.items() if value is None)
    as_usual = [f"{name} = {literal(value)}" for name, value in rare.items() if value is not None]
    first = "version = 1 AND attempt = 0 AND priority = :priority AND policy = :policy AND lease = :lease"
    first += " AND rank = created_at AND run_at = created_at"
    return f"{first} AND coalesce({unset}) IS NULL AND {' AND '.join(as_usual)}"


_sql = load("fast_claim", usual=_usual(), whole=WHOLE, row_version=str(ROW_VERSION))
_PLACES = (_sql["in_lane"], _sql["at_gate"])
_HEAD, _BEST = ([_sql[name].replace("{place}", place) for place in _PLACES] for name in ("head", "best"))
OF_LANE = _BEST[False]


def best(work: Work, claim: Claim, place: Place, limit: int, now: int) -> tuple[str, Usual, list[int]] | None:
    """The best jobs there: their numbers, what they are, and the numbers of those that are not as usual. None: they cannot
    be told in this way, or there are none."""
    head = _head(work, place)
    if head is None:
        return None
    rows = work.connection.rows(_BEST[place[0] is not None], _asked(head, place, limit, now))
    return read(work, claim, place, rows[0], now)


def asked(work: Work, place: Place, limit: int, now: int) -> dict[str, object] | None:
    """The parameters of `OF_LANE`, if the lane is known."""
    head = work.known.heads.get(place)
    return None if head is None else _asked(head, place, limit, now)


def _asked(head: Record, place: Place, limit: int, now: int) -> dict[str, object]:
    policy = number_of(policy_of(head))
    return {
        "priority": head.priority,
        "policy": policy,
        "lease": head.lease,
        **named(place),
        "now": now,
        "limit": limit,
    }


def named(place: Place) -> dict[str, object]:
    """A lane or gate as parameters of a statement."""
    limits, queue, task, routing_key = place
    return {"limits": limits, "queue": queue, "task": task, "routing_key": routing_key}


def read(work: Work, claim: Claim, place: Place, row: tuple[Any, ...], now: int) -> tuple[str, Usual, list[int]] | None:
    """What the statement said."""
    head = work.known.heads[place]
    numbers, texts, told = row
    if texts is None:
        return None
    try:
        shorts, payloads = texts.decode().split(SEPARATOR), told.decode().split(SEPARATOR)
    except UnicodeDecodeError:  # written by hand
        return None
    if len(shorts) != len(payloads):
        return None
    rows = lists_of(numbers)
    others = [number for number, short in zip(rows, shorts, strict=True) if not short] if "" in shorts else []
    if 2 * len(others) > len(shorts):
        del work.known.heads[place]  # most are like another one
    return numbers, Usual(_claimed(head, claim, now), rows, shorts, payloads, b"[]"), others


def _head(work: Work, place: Place) -> Record | None:
    """A job as the best of the lane was when last asked for. That may be long ago: each job is compared with it."""
    heads = work.known.heads
    if place not in heads:
        found = work.connection.rows(_HEAD[place[0] is not None], named(place))
        if not found:
            return None
        if len(heads) >= MOST_LANES:
            heads.clear()
        priority, lease, max_attempts, timeout, backoff, retention, dead_retention = found[0]
        limits, queue, task, routing_key = place
        head = Record(
            id=_NO_ID, task=task, queue=queue, state=State.READY, priority=priority, rank=0, payload="", version=1,
            attempt=0, failures=0, losses=0, max_attempts=max_attempts, timeout=timeout, lease=lease, backoff=backoff,
            retention=retention, dead_retention=dead_retention, created_at=0, run_at=0, routing_key=routing_key,
            limits=limits,
        )  # fmt: skip
        if None in found[0][4:] or flaw_of(head) is not None:
            return None
        heads[place] = head
    return heads[place]


def _claimed(head: Record, claim: Claim, now: int) -> Record:
    record = msgspec.structs.replace(head)
    record.state, record.version, record.attempt = State.RUNNING, 2, 1
    record.stamp, record.leased_by, record.leased_until = claim.stamp, claim.worker, now + record.lease
    return record
