"""Assigns ranks in fair queues. Reads and writes the accounts of tenants under the write lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.core.record import NewJob, Record
from perdure.storage.contract import QueueSettings
from perdure.storage.rules.fairness import Account, accounts_of, assign_ranks, floor_of, payer_of

from ..connection.work import Work
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
    keys = {_key_of(account): account for account in floors | {payer_of(job) for job in sharing}}
    rows = _ACCOUNTS.rows(work.connection, list(keys))
    known = {keys[queue, priority, name]: rank for queue, priority, name, rank in rows}
    assigned, changed = assign_ranks(sharing, known, heads, weights, now)
    _CHARGE.run(work.connection, [(*_key_of(account), rank) for account, rank in changed.items()])
    return {job.id: rank for job, rank in zip(sharing, assigned, strict=True)}


def _head(work: Work, floor: Account) -> int:
    """The smallest rank that waits in the queue with this priority."""
    rank: int = work.connection.value(_sql["head"], {"queue": floor.queue, "priority": floor.priority})
    return rank


def restore(work: Work, records: Iterable[Record]) -> None:
    """Raise the accounts of tenants to the ranks of their restored jobs."""
    _RAISE.run(work.connection, [(*_key_of(account), rank) for account, rank in accounts_of(records).items()])


def _key_of(account: Account) -> tuple[str, int, str]:
    """The primary key of an account."""
    return account.queue, account.priority, "" if account.tenant is None else f"={account.tenant}"
