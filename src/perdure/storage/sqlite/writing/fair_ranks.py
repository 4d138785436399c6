"""Shares of fair queues: the accounts behind `fairness`, which are read and written under the write lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.core.record import NewJob, Record
from perdure.storage.contract import QueueSettings
from perdure.storage.rules.fairness import Account, accounts_of, assign_ranks, floor_of, payer_of

from ..connection.writer import Work
from ..queries import load
from ..reading.records import Many

_sql = load("fair_ranks")
_ACCOUNTS = Many(_sql["accounts"], 3, (100, 20, 4, 1))
_RAISE = Many(_sql["raise"], 4, (100, 20, 4, 1))
_CHARGE = Many(_sql["charge"], 4, (100, 20, 4, 1))


def assign_shares(
    work: Work, jobs: Sequence[NewJob], settings: Mapping[str, QueueSettings], now: int
) -> dict[str, int]:
    """The ranks of those jobs whose queue is fair, by id; their tenants are charged."""
    weights = {name: queue.weights for name, queue in settings.items() if queue.fair}
    sharing = [job for job in jobs if job.queue in weights]
    if not sharing:
        return {}
    floors = {floor_of(job) for job in sharing}
    heads = {floor: _head(work, floor) for floor in floors}
    places = {_place(account): account for account in floors | {payer_of(job) for job in sharing}}
    rows = _ACCOUNTS.rows(work.connection, list(places))
    known = {places[queue, priority, name]: rank for queue, priority, name, rank in rows}
    given, changed = assign_ranks(sharing, known, heads, weights, now)
    _CHARGE.run(work.connection, [(*_place(account), rank) for account, rank in changed.items()])
    return {job.id: rank for job, rank in zip(sharing, given, strict=True)}


def _head(work: Work, floor: Account) -> int:
    """The smallest rank that waits in the queue with this priority."""
    rank: int = work.connection.value(_sql["head"], {"queue": floor.queue, "priority": floor.priority})
    return rank


def restore(work: Work, records: Iterable[Record]) -> None:
    """The tenants of jobs that were carried here go on behind them."""
    _RAISE.run(work.connection, [(*_place(account), rank) for account, rank in accounts_of(records).items()])


def _place(account: Account) -> tuple[str, int, str]:
    """Where an account is kept."""
    return account.queue, account.priority, "" if account.tenant is None else f"={account.tenant}"
