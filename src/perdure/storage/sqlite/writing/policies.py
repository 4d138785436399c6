"""Stores the policies of jobs: what nearly all jobs of a task have in common.

A policy is one row, whatever the number of jobs that have it, so that the rows of jobs are short. Its number is a hash of
its values. Every process knows the number without reading, also inside a caller's transaction, and one number never means
two policies, whatever is rolled back or restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from perdure.core.record import NewJob, Record

from ..connection.driver import Connection
from ..queries import load
from ..reading.records import POLICY, Many

Policy = tuple[int | None, int | None, str, str, str]  # in the order of POLICY

_INSERT = Many(load("policies")["insert"], 1 + len(POLICY), (20, 4, 1))


def policy_of(job: NewJob | Record) -> Policy:
    return job.max_attempts, job.timeout, job.backoff, job.retention, job.dead_retention


@lru_cache(1024)
def number_of(policy: Policy) -> int:
    """The number of a policy: 63 bits of its hash."""
    return int.from_bytes(hashlib.sha256(msgspec.json.encode(policy)).digest()[:8], "big") >> 1


def store_policies(connection: Connection, policies: Iterable[Policy]) -> None:
    """Store policies, before the jobs that have them."""
    rows: list[tuple[Any, ...]] = [(number_of(policy), *policy) for policy in dict.fromkeys(policies)]
    _INSERT.run(connection, rows)
