"""Gives the jobs of fair queues their ranks: accounts are in a table, heads come from the claim index.

The caller has locked the rows of the queues, so only one session at a time reads and writes the accounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.core.record import NewJob, Record
from perdure.storage.rules.fairness import Account, accounts_of, assign_ranks, floor_of, payer_of

from ..connection.server import Connection, Statement, pipeline
from ..queries import load
from ..reading.records import marked, numbers


class Shares:
    """The statements of one schema."""

    def __init__(self, schema: str) -> None:
        self._sql = load("fair_ranks", schema)

    async def give(
        self, connection: Connection, jobs: Sequence[NewJob], weights: Mapping[str, str | None], now: int | None
    ) -> tuple[list[int | None], int | None]:
        """The ranks of these jobs, None for those of queues that are not among the fair ones with these weights; and the
        instant at which they were given."""
        sharing = [job for job in jobs if job.queue in weights]
        if not sharing:
            return [None] * len(jobs), now
        floors = list(dict.fromkeys(floor_of(job) for job in sharing))
        accounts = [*floors, *dict.fromkeys(payer_of(job) for job in sharing)]
        known, heads = await pipeline(
            connection,
            [(self._sql["accounts"], _names(accounts)), (self._sql["heads"], {**_names(floors), "now": now})],
        )
        found = {tuple(row[:3]): row[3] for row in await known.fetchall()}
        best = await heads.fetchall()
        at = best[0][1] if now is None else now
        given, changed = assign_ranks(
            sharing,
            {account: found[_key(account)] for account in accounts if _key(account) in found},
            {floor: head or 0 for floor, (head, _) in zip(floors, best, strict=True)},
            weights,
            at,
        )
        await connection.execute(self._sql["charge"], {**_names(list(changed)), "ranks": numbers(changed.values())})
        shares = iter(given)
        return [next(shares) if job.queue in weights else None for job in jobs], at

    def restore(self, records: Iterable[Record]) -> list[Statement]:
        """The tenants of jobs that were carried here go on behind them."""
        accounts = accounts_of(records)
        values = {**_names(list(accounts)), "ranks": numbers(accounts.values())}
        return [(self._sql["raise"], values)] if accounts else []

    def forget(self) -> Statement:
        """Remove accounts that say nothing more."""
        return self._sql["forget"], {}


def _key(account: Account) -> tuple[str, int, str | None]:
    tenant = "" if account.tenant is None else f"={account.tenant}"
    return account.queue, account.priority, marked(tenant)


def _names(accounts: Sequence[Account]) -> dict[str, Any]:
    keys = [_key(account) for account in accounts]
    return {
        "queues": [queue for queue, _, _ in keys],
        "priorities": numbers(priority for _, priority, _ in keys),
        "tenants": [tenant for _, _, tenant in keys],
    }
