"""Check a recorded history: raise BrokenPromise with every violation."""

from __future__ import annotations

from collections.abc import Iterator

from .flow_rules import find_early_followers, find_repeated_effects
from .history import History
from .job_rules import (
    find_double_holds,
    find_double_successes,
    find_illegal_moves,
    find_lost_jobs,
    find_undeserved_deaths,
    find_wrong_counts,
)
from .key_rules import find_broken_limits, find_double_keys, find_rolled_back_jobs


class BrokenPromise(AssertionError):
    """The history breaks a promise."""


def check(history: History) -> None:
    """Raise BrokenPromise with every violation of this history.

    >>> row = {"id": "a", "state": "ready", "attempt": 0, "failures": 0, "losses": 0}
    >>> check(History([{"event": "acknowledged", "id": "a"}], [row], drained=False))
    >>> check(History([{"event": "acknowledged", "id": "b"}], [row], drained=False))
    Traceback (most recent call last):
    perdure.testing.checker.check.BrokenPromise: I1: b was acknowledged and is not on record
    """
    broken = list(violations(history))
    if broken:
        more = f"\n… and {len(broken) - 20} more" if len(broken) > 20 else ""
        raise BrokenPromise("\n".join(broken[:20]) + more)


def violations(history: History) -> Iterator[str]:
    """Yield every broken promise as a sentence."""
    yield from find_lost_jobs(history)
    yield from find_illegal_moves(history)
    yield from find_double_holds(history)
    yield from find_double_successes(history)
    yield from find_wrong_counts(history)
    yield from find_undeserved_deaths(history)
    yield from find_repeated_effects(history)
    yield from find_early_followers(history)
    yield from find_broken_limits(history)
    yield from find_double_keys(history)
    yield from find_rolled_back_jobs(history)
