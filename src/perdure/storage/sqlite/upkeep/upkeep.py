"""Finds jobs whose lease has lapsed or that have expired, and removes what is no longer kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.core.clock import SECOND
from perdure.core.record import Record
from perdure.core.retention import HIDDEN_FOR

from ..connection.driver import Connection
from ..connection.work import Work
from ..queries import load
from ..reading.raw_rows import records_or_numbers
from ..reading.records import RECORD, WHOLE, json_text, lists_of
from .unreadable import sort_out

SMALL = 20_000
MANY_POLICIES = 1_000  # more than code declares: callers make their own
START_KEPT = 24 * 3600 * SECOND  # after its window, in case the clock goes back

# a follower needs the result of an ended job
_NEEDED = """EXISTS (
    SELECT 1 FROM perdure_edges AS edge LEFT JOIN perdure_jobs AS child ON child.id = edge.child
    WHERE edge.parent = ended.id AND (edge.open = 1 OR (child.id IS NOT NULL AND child.finished_at IS NULL)))"""
_sql = load("upkeep", record=RECORD, whole=WHOLE, needed=_NEEDED)
_numbers = load("upkeep", record="number", whole=WHOLE, needed=_NEEDED)


def read_lapsed(work: Work, limit: int, contact: int, now: int) -> list[Record]:
    """Jobs whose lease has lapsed; leases that end too late are cut first."""
    work.connection.change(_sql["cut_leases"], {"now": now})
    asked = {"now": now, "longest": 3 * contact, "limit": limit}
    records, unread = records_or_numbers(
        lambda statement: work.connection.value(statement, asked), _sql["lapsed"], _numbers["lapsed"]
    )
    return sort_out(work, unread, now)[0] if unread else records


def next_lapse(connection: Connection, now: int) -> int | None:
    """How long it takes until the next lease lapses."""
    first: int | None = connection.value(_sql["next_lapse"])
    return None if first is None else first - now


def read_expired(connection: Connection, limit: int, now: int) -> tuple[list[Record], list[int]]:
    """Jobs that were not started in time; or the numbers of their rows, if one of those cannot be read."""
    return records_or_numbers(
        lambda statement: connection.value(statement, (now, limit)), _sql["expired"], _numbers["expired"]
    )


def _too_many(connection: Connection) -> str:
    """The statement that finds jobs beyond `keep_last`. In a long history only jobs with `keep_last` are counted, because it
    would take too long to read the others; a few more jobs may stay."""
    return _sql["too_many" if connection.value(_sql["is_small"], {"small": SMALL}) else "too_many_counted"]


def prune(work: Work, limit: int, now: int) -> int:
    """Hide or remove what is no longer kept; returns the number of jobs."""
    connection = work.connection
    connection.change(_sql["remove_keys"], (now,))
    connection.change(_sql["remove_starts"], (now - START_KEPT,))
    connection.change(_sql["remove_accounts"])
    gone = _jobs_to_remove(connection, limit, now)
    if connection.value(_sql["many_policies"], {"many": MANY_POLICIES}) and work.hints.is_policy_search_due():
        connection.change(_sql["remove_policies"])
    _hide(connection, [number for number, (_, too_new) in gone.items() if too_new])
    _remove(connection, {number: id for number, (id, too_new) in gone.items() if not too_new})
    return len(gone)


def _jobs_to_remove(connection: Connection, limit: int, now: int) -> dict[int, tuple[str, bool]]:
    """Jobs that are no longer kept, by row number: the id, and whether the job may only be hidden yet."""
    gone: dict[int, tuple[str, bool]] = {}

    def read(statement: str, about: int | str) -> None:
        asked = {"about": about, "hidden_since": now - HIDDEN_FOR, "limit": limit}
        for number, id, too_new in lists_of(connection.value(statement, asked)):
            if len(gone) < limit:
                gone[number] = (id, bool(too_new))

    read(_sql["past_their_time"], now)
    if len(gone) < limit and (tasks := lists_of(connection.value(_sql["counted_tasks"]))):
        read(_too_many(connection), json_text(tasks))
    return gone


def _hide(connection: Connection, numbers: Sequence[int]) -> None:
    if numbers:
        connection.change(_sql["hide"], {"numbers": json_text(numbers), "hidden_for": HIDDEN_FOR})


def _remove(connection: Connection, gone: Mapping[int, str]) -> None:
    if gone:
        connection.change(_sql["remove"], (json_text(list(gone)),))
        ids = json_text(list(gone.values()))
        for statement in ("remove_logs", "remove_edges", "remove_kv", "remove_unreadable"):
            connection.change(_sql[statement], {"ids": ids})
