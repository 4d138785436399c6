"""What most jobs and most ends are like: stores that can write those in a shorter way ask here."""

from __future__ import annotations

from ..job import ROW_VERSION, NewJob, State
from ..lifecycle import Change, HoldGuard, KeyMove


def is_plain(job: NewJob) -> bool:
    """A new job that has only the fields that every job has."""
    return job.limits is None and is_plain_but_for_limits(job)


def is_plain_but_for_limits(job: NewJob) -> bool:
    return (
        job.key is job.tenant is job.routing_key is job.tags is job.meta is job.unique_key is job.chain_id is None
        and job.after is job.unique_scope is None
        and job.expires is None
        and job.waits == 0
        and job.run_when == "succeeded"
        and job.min_version == ROW_VERSION
    )


def is_plain_success(change: Change) -> bool:
    """A holder's word that its job succeeded, with nothing beside it but a result."""
    return (
        change.state is State.SUCCEEDED
        and change.key is KeyMove.FREE
        and type(change.guard) is HoldGuard
        and change.keep_last is change.at is change.delay is None
        and change.reason is change.errors is change.next_id is None
        and not change.adds
        and not (change.guard.ended or change.hidden or change.losses or change.suspect or change.keeps_hold)
    )
