"""Policies: what nearly all jobs of a task have in common. They are kept once, not with every job, so that a row is short:
it is written whole at every move.

A policy's number is made of what it says. So everybody knows it without asking, inside a caller's transaction too, and one
number never means two things, whatever is rolled back or restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from perdure.job import NewJob, Record

from .driver import Connection
from .queries import load
from .rows import POLICY, Many

_INSERT = Many(load("enqueue")["insert_policies"], 1 + len(POLICY), (20, 4, 1))

Policy = tuple[int | None, int | None, str, str, str]  # in the order of POLICY


def policy_of(job: NewJob | Record) -> Policy:
    return job.max_attempts, job.timeout, job.backoff, job.retention, job.dead_retention


@lru_cache(1024)
def number_of(policy: Policy) -> int:
    """The number under which a policy is kept: 63 bits of its hash."""
    return int.from_bytes(hashlib.sha256(msgspec.json.encode(policy)).digest()[:8], "big") >> 1


def keep(connection: Connection, policies: Iterable[Policy]) -> None:
    """Put policies on record, before the jobs that have them."""
    rows: list[tuple[Any, ...]] = [(number_of(policy), *policy) for policy in dict.fromkeys(policies)]
    _INSERT.run(connection, rows)
