"""Reading jobs, and the small tables beside them: queues and workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from perdure.core.job import ANY
from perdure.core.record import Record
from perdure.storage.contract import Filter, QueueRow, QueueSettings, WorkerRow
from perdure.storage.rules.filters import Position, cursor_of, spellings

from ..connection.busy import Retry
from ..connection.driver import Connection
from ..connection.work import Work
from ..queries import load
from .raw_rows import records_for_readers, records_or_numbers
from .records import BODY, RECORD, WHOLE, json_text

OnFull = Literal["reject", "drop", "wait"]
FEW = 20_000  # so many rows are sorted sooner than a long history is read

_sql = load("listing", record=RECORD, whole=WHOLE)
_numbers = load("listing", record="number", whole=WHOLE)
FIRST_SLICE, LAST_SLICE = 500, 8_000  # rows
_CREATED = "INDEXED BY perdure_jobs_created"
_JOBS = "perdure_jobs AS job"
_BODIES = "perdure_bodies AS body USING (number)"


def get(connection: Connection, ids: Sequence[str], now: int) -> list[Record | None]:
    asked = (json_text(list(ids)),)
    records, unread = records_or_numbers(
        lambda statement: connection.value(statement, asked), _sql["get"], _numbers["get"]
    )
    found = {record.id: record for record in (records_for_readers(connection, unread, now) if unread else records)}
    return [found.get(id) for id in ids]


def find(
    connection: Connection, retry: Retry, filter: Filter, limit: int, after: Position | None, now: int
) -> tuple[list[Record], str | None]:
    """A page, newest first. A long history is read in slices, because with a rollback journal no commit is possible while
    one statement reads. A job never moves from one slice to another."""
    conditions, parameters = retry(_conditions, connection, filter)
    index = _index(filter, conditions)
    found: list[Record] = []
    slice_ = FIRST_SLICE
    until: Position | None = None
    while True:
        if index == _CREATED:
            until = retry(_slice_end, connection, after, slice_)
        within, values = _slice(conditions, parameters, after, until)
        jobs = f"{_JOBS} {index} CROSS JOIN {_BODIES}" if index else f"{_JOBS} JOIN {_BODIES}"
        records, numbers = (
            each["find"].replace("{jobs}", jobs).replace("{matching}", " AND ".join(within))
            for each in (_sql, _numbers)
        )
        read = partial(
            retry, lambda asked, statement: connection.value(statement, asked), (*values, limit + 1 - len(found))
        )
        page, unread = records_or_numbers(read, records, numbers)
        found += records_for_readers(connection, unread, now) if unread else page
        if until is None or len(found) > limit:
            break
        after, slice_ = until, min(4 * slice_, LAST_SLICE)
    matching = found[:limit]
    more = len(found) > limit and matching
    return matching, cursor_of(matching[-1]) if more else None


def _slice_end(connection: Connection, after: Position | None, rows: int) -> Position | None:
    """The last position of the next so many rows, None if there are fewer."""
    begin = "" if after is None else "WHERE (created_at, id) < (?, ?)"
    ends = connection.rows(_sql["slice_end"].replace("{begin}", begin), (*(after or ()), rows - 1))
    return ends[0] if ends else None


def _slice(
    conditions: list[str], parameters: list[Any], after: Position | None, until: Position | None
) -> tuple[list[str], list[Any]]:
    conditions, parameters = [*conditions], [*parameters]
    if after is not None:
        conditions.append("(created_at, id) < (?, ?)")
        parameters += after
    if until is not None:
        conditions.append("(created_at, id) >= (?, ?)")
        parameters += until
    return conditions, parameters


def count(connection: Connection, filter: Filter) -> int:
    conditions, parameters = _conditions(connection, filter)
    jobs = f"{_JOBS} JOIN {_BODIES}" if _needs_bodies(filter) else _JOBS
    statement = _sql["count"].replace("{jobs}", jobs).replace("{matching}", " AND ".join(conditions))
    found: int = connection.value(statement, parameters)
    return found


def _needs_bodies(filter: Filter) -> bool:
    asked = [name for name in _CONDITIONS if getattr(filter, name) is not None]
    return filter.text is not None or not {"tag", *BODY}.isdisjoint(asked)


def _index(filter: Filter, conditions: list[str]) -> str:
    """The index that a listing reads. Without statistics SQLite cannot know which one is short."""
    if filter.key is not None or filter.chain_id is not None or any("number IN" in one for one in conditions):
        return ""
    if filter.states is not None and set(filter.states) == {"dead"}:
        return "INDEXED BY perdure_jobs_dead"
    return _CREATED


_CONDITIONS = {
    "task": "task = ?",
    "queue": "queue = ?",
    "key": "key = ?",
    "since": "created_at >= ?",
    "before": "created_at < ?",
    "tag": "EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(body.tags) THEN body.tags END) AS tag WHERE tag.value = ?)",
    "tenant": "(tenant = ? OR (tenant >= ? || '/' AND tenant < ? || '0'))",  # 0 comes right after /
    "chain_id": "(chain_id = ? OR (chain_id IS NULL AND id = ?))",
}
_MENTIONS = " OR ".join(f"instr(lower({place}), lower(?))" for place in ("payload", "key", "reason", "errors"))


def _conditions(connection: Connection, filter: Filter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = ["hidden = 0"]
    parameters: list[Any] = []
    if filter.states is not None:
        matching, names = _states(connection, filter.states)
        conditions += matching
        parameters += names
    if filter.routing is not ANY:
        conditions.append("routing_key IS ?")
        parameters.append(filter.routing)
    for field, condition in _CONDITIONS.items():
        value = getattr(filter, field)
        if value is not None:
            conditions.append(condition)
            parameters += [value] * condition.count("?")
    if filter.text is not None:
        searched = spellings(filter.text)
        conditions.append(f"({' OR '.join([_MENTIONS] * len(searched))})")
        parameters += [text for text in searched for _ in range(_MENTIONS.count("?"))]
    return conditions, parameters


def _states(connection: Connection, states: Sequence[str]) -> tuple[list[str], list[str]]:
    names = sorted({str(state) for state in states})
    if names == ["dead"]:
        return ["index_state = 'dead'"], []
    matching = [f"state IN ({', '.join('?' * len(names))})"]
    live = _live(names)
    if live is not None and connection.value(_sql["few_live"].replace("{live}", live), {"few": FEW}):
        matching.append(f"job.number IN ({live})")
    return matching, names


def _live(names: Sequence[str]) -> str | None:
    """The rows of these states from the indexes that hold only jobs that have not ended; None if one of them is final."""
    parts = {part for name in names for part in _LIVE.get(name, ("",))}
    return None if not parts or "" in parts else " UNION ALL ".join(_sql[part] for part in sorted(parts))


_LIVE = {
    "ready": ("live_ready", "live_parked", "live_aside"),
    "scheduled": ("live_aside",),
    "blocked": ("live_aside",),
    "running": ("live_held",),
}


# ---- queues and workers ----------------------------------------------------------------------------
def log(connection: Connection, id: str) -> list[str]:
    """A job's log lines. Bytes that are no UTF-8 are shown as they are: a line is only for reading."""
    return [line.decode("utf-8", "backslashreplace") for (line,) in connection.rows(_sql["log"], (id,))]


def queues(connection: Connection, now: int) -> list[QueueRow]:
    connection.rows("BEGIN")
    try:
        configured = connection.rows(_sql["queues"])
        depths = connection.rows(_sql["depths"])
        shared = dict(connection.rows(_sql["oldest_of_shared"]))
    finally:
        connection.rows("COMMIT")
    settings = {row[0]: _settings(*row) for row in configured}
    depth: dict[str, int] = {}
    oldest: dict[str, int] = {}
    for queue, waiting, due, in_lanes in depths:
        depth[queue] = depth.get(queue, 0) + waiting
        due = shared.get(queue, due) if in_lanes else due
        if due is not None:
            oldest[queue] = max(oldest.get(queue, 0), now - due)
    return [
        QueueRow(settings.get(name) or QueueSettings(name), depth.get(name, 0), oldest.get(name))
        for name in sorted(settings.keys() | depth.keys())
    ]


def _settings(
    name: str,
    paused: int,
    max_depth: int | None,
    on_full: OnFull,
    drop_below: int | None,
    fair: int,
    weights: str | None,
) -> QueueSettings:
    return QueueSettings(name, bool(paused), max_depth, on_full, drop_below, bool(fair), weights)


def configure(work: Work, settings: QueueSettings) -> None:
    values = (settings.max_depth, settings.on_full, settings.drop_below, int(settings.fair), settings.weights)
    work.connection.change(_sql["configure"], (settings.name, *values))


def pause(work: Work, queue: str, paused: bool) -> None:
    work.connection.change(_sql["pause"], (queue, int(paused)))
    work.connection.change(_sql["close_gates" if paused else "open_gates"], (queue,))
    if not paused:
        work.connection.change(_sql["resume"], (queue,))
        work.ready.add(queue)


def heartbeat(work: Work, worker: WorkerRow, now: int) -> None:
    values = (worker.id, worker.started_at, now, worker.running, worker.about)
    work.connection.change(_sql["heartbeat"], values)


def remove_worker(work: Work, worker: str) -> None:
    work.connection.change(_sql["remove_worker"], (worker,))


def workers(work: Work, seen_within: int, now: int) -> list[WorkerRow]:
    work.connection.change(_sql["remove_workers"], (now - seen_within,))
    return [WorkerRow(*row) for row in work.connection.rows(_sql["workers"])]
