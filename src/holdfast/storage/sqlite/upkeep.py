"""The set-wise moves of upkeep: what has lapsed, expired, or been kept long enough."""

from __future__ import annotations

from holdfast.clock import SECOND
from holdfast.job import Record

from .database import Work
from .driver import Connection
from .queries import load
from .rows import RECORD, json_text, lists_of, records_of

SMALL = 20_000
MANY_POLICIES = 1_000  # more than code declares: callers make their own
START_KEPT = 24 * 3600 * SECOND  # after its window, in case the clock goes back

# somebody needs what came of an ended job
_NEEDED = """EXISTS (
    SELECT 1 FROM holdfast_edges AS edge LEFT JOIN holdfast_jobs AS child ON child.id = edge.child
    WHERE edge.parent = ended.id AND (edge.open = 1 OR (child.id IS NOT NULL AND child.finished_at IS NULL)))"""
_sql = load("upkeep", record=RECORD, needed=_NEEDED)


def lapsed(work: Work, limit: int, contact: int, now: int) -> list[Record]:
    """Jobs whose lease is over; leases that reach too far are cut first."""
    work.connection.change(_sql["cut_leases"], (now,))
    return records_of(work.connection.value(_sql["lapsed"], (now, 3 * contact, limit)))


def expired(connection: Connection, limit: int, now: int) -> list[Record]:
    return records_of(connection.value(_sql["expired"], (now, limit)))


def _too_many(connection: Connection) -> str:
    """A long history is not looked through for this: then only counted jobs take places, and a few more may stay."""
    return _sql["too_many" if connection.value(_sql["is_small"], (SMALL,)) else "too_many_counted"]


def prune(work: Work, limit: int, now: int) -> int:
    """Remove what is no longer kept; gives the number of jobs."""
    connection = work.connection
    connection.change(_sql["remove_keys"], (now,))
    connection.change(_sql["remove_starts"], (now - START_KEPT,))
    connection.change(_sql["remove_accounts"])
    gone = dict(lists_of(connection.value(_sql["past_their_time"], (now, limit))))
    for task in lists_of(connection.value(_sql["counted_tasks"])):
        if len(gone) < limit:
            gone |= dict(lists_of(connection.value(_too_many(connection), (task, limit))))
    if connection.value(_sql["many_policies"], (MANY_POLICIES,)) and work.known.looks_for_policies():
        connection.change(_sql["remove_policies"])
    numbers = list(gone)[:limit]
    if numbers:
        connection.change(_sql["remove"], (json_text(numbers),))
        ids = json_text([gone[number] for number in numbers])
        for statement in ("remove_logs", "remove_edges", "remove_shelved"):
            connection.change(_sql[statement], (ids,))
    return len(numbers)
