"""Fair queues: the rank of a job decides which tenant is next.

Start-time fair queueing. Each tenant of a queue and priority has an account: the rank of its last job. A new job gets
the greater of its tenant's account and the queue's *floor*, plus one share, which is smaller for a greater weight. So a
tenant with a million jobs has ranks that reach far ahead, and another's first job comes right behind the head. The floor
is where the best job that is ready now began: its rank less a share; and it never falls.

Ranks begin at the clock's time, where those of plain queues are, so that a queue may become fair and plain again. A rank
that equals run_at is a plain one; shares keep off it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from ...core.job import WAITING, tenant_root
from ...core.record import NewJob, Record

SHARE = 1_000  # of rank, for weight 1
FAR = 1 << 53  # ahead of the clock: a rank that jobs cannot reach


class Account(msgspec.Struct, frozen=True, gc=False):
    """Whose ranks: a tenant's (up to "/", "" for none) in a queue and priority. With `tenant` None: the queue's floor."""

    queue: str
    priority: int
    tenant: str | None = None


def payer_of(job: NewJob | Record) -> Account:
    """The account that a job is charged to."""
    return Account(job.queue, job.priority, tenant_root(job.tenant))


def floor_of(job: NewJob) -> Account:
    return Account(job.queue, job.priority)


def assign_ranks(
    jobs: Sequence[NewJob],
    accounts: Mapping[Account, int],
    heads: Mapping[Account, int],
    weights: Mapping[str, str | None],
    now: int,
) -> tuple[list[int], dict[Account, int]]:
    """The ranks of new jobs of fair queues, in list order, and the accounts that changed.

    `accounts`: what is known of payers and floors; `heads`: by floor, the smallest rank of the jobs that are ready there and
    not parked; `weights`: the setting of each queue."""
    changed: dict[Account, int] = {}
    given = []
    for job in jobs:
        floor, payer_ = floor_of(job), payer_of(job)
        if floor not in changed:
            changed[floor] = max(_rank_or(accounts, floor, now, now), _rank_or(heads, floor, 0, now) - SHARE)
        last = max(changed[floor], changed.get(payer_, _rank_or(accounts, payer_, 0, now)))
        rank = last + share(weights.get(job.queue), payer_.tenant or "")
        if rank == (now + job.delay if job.at is None else job.at):
            rank += 1
        changed[payer_] = rank
        given.append(rank)
    return given, changed


def _rank_or(ranks: Mapping[Account, int], account: Account, otherwise: int, now: int) -> int:
    """A stored rank. One that no number of jobs can reach was not written by Perdure, and does not count."""
    rank = ranks.get(account, otherwise)
    return rank if -FAR <= rank <= now + FAR else otherwise


def accounts_of(records: Iterable[Record]) -> dict[Account, int]:
    """What jobs that were carried here have cost, as far as they still wait: the least that their payers' accounts hold."""
    found: dict[Account, int] = {}
    for record in records:
        if record.state in WAITING and record.rank != record.run_at:
            account = payer_of(record)
            found[account] = max(record.rank, found.get(account, 0))
    return found


def share(weights: str | None, tenant: str) -> int:
    """What one job of this tenant costs."""
    return max(1, int(SHARE / weights_of(weights).get(tenant, 1.0)))


@lru_cache(maxsize=256)
def weights_of(text: str | None) -> dict[str, float]:
    """The weights of tenants. A setting that cannot be read gives all the same weight."""
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, _Weight])
    except (msgspec.MsgspecError, ValueError):
        return {}


_Weight = Annotated[float, msgspec.Meta(gt=0)]
