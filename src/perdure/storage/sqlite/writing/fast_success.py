"""Fast path: writes ordinary successes, the most frequent changes of all, by one guarded statement for many jobs.

If the statement updates fewer rows than there are successes, the guard of one of them does not hold. Then the transaction is
rolled back, and the general path judges and writes each change.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from perdure.core.lifecycle import Change
from perdure.storage.rules import fast_path
from perdure.storage.rules.fast_path import are_ordinary_successes, is_ordinary_success

from ..connection.work import RetryRowByRow, Work
from ..queries import load
from ..reading.records import Many, json_text, lists_of

_sql = load("fast_success")
_row_of = attrgetter("id", "guard.attempt", "guard.stamp", "failures", "result", "keep", "started_at")
_SUCCEED = Many(_sql["succeed"], 7, (500, 100, 20, 5, 1), padded=True)


class OrdinarySuccesses:
    """The ordinary successes among some changes, prepared by the event loop for the writer's thread."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes: Sequence[Change] = ()
        if fast_path.enabled():
            # nearly always all of them
            all_ordinary = are_ordinary_successes(changes)
            self.changes = changes if all_ordinary else [change for change in changes if is_ordinary_success(change)]
        self.rows: list[tuple[Any, ...]] = [*map(_row_of, self.changes)]


def try_fast_success(work: Work, successes: OrdinarySuccesses, now: int) -> Sequence[Change] | None:
    """Write the ordinary successes and return them. None: write them by the general path."""
    if work.careful or not successes.changes:
        return None
    if work.connection.value(_sql["any_closed"]):
        ids = json_text([change.id for change in successes.changes])
        work.ready.update(lists_of(work.connection.value(_sql["limited_queues"], (ids,))))
    if _SUCCEED.run(work.connection, successes.rows, now, now) != len(successes.rows):
        raise RetryRowByRow
    work.changed = True
    return successes.changes
