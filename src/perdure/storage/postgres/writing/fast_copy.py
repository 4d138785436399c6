"""Fast path: stores a long list of ordinary jobs by COPY.

Of the jobs of such a list only ids and payloads differ. So a row is bytes that all rows share, an id and a payload. COPY
takes such rows without a plan, and the server logs whole pages of them, where an INSERT logs every row: a fifth less log,
and a quarter less of the server's time.

Everything is one transaction. It first reads the clock, and whether the queue is bounded or fair; if so, it stores nothing.
An id that is stored already makes the transaction fail as a whole.

Two lists that are stored at the same time begin with different tables: rising ids are cheap to add at the end of an index as
long as one session does it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from struct import Struct
from typing import NamedTuple, Protocol

from psycopg.errors import UniqueViolation

from perdure.core.record import NewJob, UniformJobs
from perdure.storage.contract import EnqueueResult
from perdure.storage.rules import fast_path

from ..connection.server import Connection
from ..queries import load
from ..reading.records import JOINT
from .caller_insert import unless_default

COPY_FROM = 1_000  # jobs of one enqueue from which COPY is quicker
PIECE = 65_536  # characters of payloads that are sent together

_SMALL, _LENGTH, _INTEGER, _BIGINT = Struct(">h"), Struct(">i"), Struct(">ii"), Struct(">iq")
_BEGIN, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"  # of COPY's binary format
_ID, _NULL = _LENGTH.pack(16), _LENGTH.pack(-1)

# the defaults of the tables; of all other columns the default is NULL
JOBS: Mapping[str, int | str] = {
    "lease": 60_000_000,
    "timeout": 300_000_000,
    "max_attempts": 3,
    "priority": 0,
    "queue": "default",
}
WAITING: Mapping[str, int | str] = {"urgency": -1, "state": "ready", "queue": "default", "route": ""}


class Columns(NamedTuple):
    """The columns that all rows share: their names, their number, and their values as bytes."""

    names: str
    number: int
    values: bytes


class Instant(Protocol):
    """Turns the server's clock into the instant at which the jobs are made."""

    def __call__(self, clock: int) -> int: ...


def can_copy(jobs: object) -> bool:
    """Whether to try. A job that starts at an instant of its own may be late already: the general path decides."""
    if not isinstance(jobs, UniformJobs) or len(jobs) < COPY_FROM or not fast_path.enabled():
        return False
    one = jobs.template
    return fast_path.is_ordinary(one) and one.at is None and (one.delay or 0) >= 0


async def try_fast_copy(
    connection: Connection, schema: str, jobs: UniformJobs, instant: Instant, *, waiting_first: bool
) -> list[EnqueueResult] | None:
    """Store all these jobs, in a transaction of its own. None: nothing was stored. The queue is bounded or fair, an id is
    stored already, or a payload holds the separator."""
    rows = Rows(jobs)
    try:
        async with connection.transaction():
            sql = load("fast_copy", schema, job_columns="{job_columns}", waiting_columns="{waiting_columns}")
            cursor = await connection.execute(sql["look"], {"queue": jobs.template.queue})
            ((clock, bounded),) = await cursor.fetchall()
            now = instant(clock)
            if bounded or not rows.complete:
                return None
            for table in ("waiting", "jobs") if waiting_first else ("jobs", "waiting"):
                columns, pieces = rows.of(table, now)
                statement = sql[table].replace(f"{{{table.removesuffix('s')}_columns}}", columns)
                async with connection.cursor() as writer, writer.copy(statement.encode()) as copy:
                    for piece in pieces:
                        await copy.write(piece)
    except UniqueViolation:
        return None
    return [EnqueueResult(id) for id in jobs.ids]


# -- rows --------------------------------------------------------------------------------------------
class Rows:
    """Jobs as rows of both tables."""

    def __init__(self, jobs: UniformJobs) -> None:
        ids = bytes.fromhex("".join(jobs.ids).replace("-", ""))
        self._template = jobs.template
        self._ids = [ids[place : place + 16] for place in range(0, len(ids), 16)]
        self._payloads = JOINT.join(jobs.payloads).encode().split(JOINT.encode())
        self._piece = 1 + PIECE * len(jobs) // (1 + sum(map(len, jobs.payloads)))
        self.complete = len(self._ids) == len(self._payloads) == len(jobs)

    def of(self, table: str, now: int) -> tuple[str, Iterator[bytes]]:
        """The names of the columns that all rows share, and the rows in COPY's binary format."""
        if table == "jobs":
            columns = _job_columns(self._template, now)
            return columns.names, self._jobs(columns)
        columns = _waiting_columns(self._template, now)
        return columns.names, self._waiting(columns)

    def _jobs(self, columns: Columns) -> Iterator[bytes]:
        front = _SMALL.pack(2 + columns.number) + _ID
        middles = {length: columns.values + _LENGTH.pack(length) for length in set(map(len, self._payloads))}
        yield _BEGIN
        for start in range(0, len(self._ids), self._piece):
            part = slice(start, start + self._piece)
            ids, payloads = self._ids[part], self._payloads[part]
            fitting = map(middles.__getitem__, map(len, payloads))
            yield b"".join(chain.from_iterable(zip(repeat(front), ids, fitting, payloads)))
        yield _END

    def _waiting(self, columns: Columns) -> Iterator[bytes]:
        front = _SMALL.pack(1 + columns.number) + _ID
        yield b"".join([_BEGIN, front, (columns.values + front).join(self._ids), columns.values, _END])


def _job_columns(job: NewJob, now: int) -> Columns:
    run_at = now + job.delay if job.delay else None
    instants = {"created_at": now, "run_at": run_at, "lease": job.lease, "timeout": job.timeout}
    policies = {name: unless_default(job, name) for name in ("backoff", "retention", "dead_retention")}
    return _columns(
        JOBS,
        {**instants, "max_attempts": job.max_attempts},
        {"priority": job.priority},
        {"task": job.task, "queue": job.queue, **policies},
    )


def _waiting_columns(job: NewJob, now: int) -> Columns:
    run_at = now + job.delay if job.delay else None
    return _columns(
        WAITING,
        {"rank": now if run_at is None else run_at, "run_at": run_at},
        {"urgency": -1 - job.priority},
        {"state": "ready" if run_at is None else "scheduled", "queue": job.queue, "task": job.task, "route": ""},
    )


def _columns(
    defaults: Mapping[str, int | str],
    bigints: Mapping[str, int | None],
    integers: Mapping[str, int],
    texts: Mapping[str, str | None],
) -> Columns:
    """The columns whose values are not the defaults of the table."""
    values = {name: _optional(None if number is None else _BIGINT.pack(8, number)) for name, number in bigints.items()}
    values |= {name: _INTEGER.pack(4, number) for name, number in integers.items()}
    values |= {name: _optional(None if text is None else _text(text.encode())) for name, text in texts.items()}
    plain = {**bigints, **integers, **texts}
    special = {name: value for name, value in values.items() if plain[name] != defaults.get(name)}
    return Columns(", ".join(special), len(special), b"".join(special.values()))


def _optional(value: bytes | None) -> bytes:
    return _NULL if value is None else value


def _text(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text
