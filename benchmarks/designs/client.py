"""A thin client: enqueues by arrays, and exchanges with a few calls under way at once.

It counts how often each job was handed out: a design that hands one out twice, or not at all, is no design.
"""

import asyncio
import time
from dataclasses import dataclass, field, replace

import psycopg

from perdure.core.ids import new_id, new_stamp

from ..payload import number_of, payload
from .catalogue import Design
from .database import Database

QUEUE, TASK = "default", "benchmarks.noop"
Mark = tuple[int, int, str]
START: Mark = (-(2**31), -(2**63), "00000000-0000-0000-0000-000000000000")
ENQUEUE = "SELECT enqueue(%b::uuid[], %b::text[], %s, %s)"
EXCHANGE = (
    "SELECT * FROM exchange(%b::uuid[], %b::int4[], %b::int8[], %b::text[], %s, %s, %s, %s, %s, %s, %s, %s::uuid)"
)
ID, URGENCY, PAYLOAD, RANK, STAMP, ATTEMPT = 0, 6, 11, 25, 28, 32  # where they stand in a claimed row
CHUNK = 1000
FULL_SCAN = 1.0  # seconds after which the mark is not trusted, at the least


@dataclass(frozen=True)
class Sample:
    """How far the work was at an instant, and what the server had used."""

    at: float
    got: int
    server: float


@dataclass(frozen=True)
class Window:
    """A part of a run: jobs a second, and the server's microseconds a job, which other programs disturb less."""

    rate: float
    cpu: float

    @classmethod
    def between(cls, before: Sample, after: Sample) -> "Window":
        jobs = max(1, after.got - before.got)
        return cls(jobs / (after.at - before.at), (after.server - before.server) / jobs * 1e6)


class HandedOutWrongly(Exception):
    """Some job was handed out twice, or never."""


@dataclass
class Client:
    """One worker process without handlers."""

    database: Database
    design: Design
    jobs: int
    batch: int
    mark: Mark = START
    got: int = 0
    stop_at: int | None = None  # leave the rest
    _seen: bytearray = field(init=False)
    _samples: list[Sample] = field(default_factory=list)
    _full_at: float = 0.0
    _full_cost: float = 0.0
    _short: bool = False

    def __post_init__(self) -> None:
        self._seen = bytearray(self.jobs)

    # -- enqueue -------------------------------------------------------------------------------------
    async def enqueue(self, ahead: int | None = None) -> None:
        """All jobs; with `ahead`, never more than so many before the claims (which then do the counting)."""
        async with await self._connection() as connection:
            begun = self._sample()
            for first in range(0, self.jobs, CHUNK):
                while ahead is not None and first - self.got >= ahead:
                    await asyncio.sleep(0.001)
                numbers = range(first, min(first + CHUNK, self.jobs))
                given = ([new_id() for _ in numbers], [payload(number) for number in numbers], QUEUE, TASK)
                await connection.execute(ENQUEUE, given, binary=True)
            if ahead is None:
                self._samples = [begun, replace(self._sample(), got=self.jobs)]

    # -- exchange ------------------------------------------------------------------------------------
    async def drain(self, in_flight: int) -> None:
        """Until every job (with `stop_at`: so many) was handed out and finished."""
        connections = [await self._connection() for _ in range(in_flight)]
        try:
            self._samples = [self._sample()]
            await asyncio.gather(*(self._exchange_all(connection) for connection in connections))
            self._samples.append(self._sample())
        finally:
            for connection in connections:
                await connection.close()

    async def _exchange_all(self, connection: psycopg.AsyncConnection) -> None:
        done: tuple[list[object], ...] = ([], [], [], [])
        while self._wants_more() or done[0]:
            rows = await self._exchange(connection, done)
            self.got += len(rows)
            self._watch()
            for row in rows:
                self._seen[number_of(row[PAYLOAD])] += 1
            done = (*([row[column] for row in rows] for column in (ID, ATTEMPT, STAMP)), ["null"] * len(rows))
            if not rows and self._wants_more():
                await asyncio.sleep(0.001)

    async def _exchange(self, connection: psycopg.AsyncConnection, done: tuple[list[object], ...]) -> list[tuple]:
        begun = time.perf_counter()
        mark, wanted = self._start(begun), self.batch if self._wants_more() else 0
        given = (*done, "worker-1", new_stamp(), wanted, QUEUE, TASK, *mark)
        rows = await (await connection.execute(EXCHANGE, given, binary=True)).fetchall()
        if mark is START:
            self._full_at = time.perf_counter()
            self._full_cost = self._full_at - begun
        if wanted and self.design.mark:
            self._move_mark(rows)
        return rows

    def _start(self, now: float) -> Mark:
        """The mark; now and then the very beginning, where late and returned jobs lie. A claim that came back short asks for
        that at once, but whole scans never take more than a twentieth of the time."""
        pause = 20 * self._full_cost if self._short else max(FULL_SCAN, 20 * self._full_cost)
        return self.mark if self.design.mark and now - self._full_at < pause else START

    def _move_mark(self, rows: list[tuple]) -> None:
        self._short = len(rows) < self.batch
        if rows and (last := max((row[URGENCY], row[RANK], str(row[ID])) for row in rows)) > self.mark:
            self.mark = last

    def _wants_more(self) -> bool:
        return self.got < self._goal()

    def _goal(self) -> int:
        return self.jobs if self.stop_at is None else self.stop_at

    def _watch(self) -> None:
        """A sample at each tenth of the way but the last, which is taken when all is finished."""
        tenth = (self._goal() - self._samples[0].got) / 10
        if len(self._samples) < 10 and self.got >= self._samples[0].got + tenth * len(self._samples):
            self._samples.append(self._sample())

    def _sample(self) -> Sample:
        return Sample(time.perf_counter(), self.got, self.database.server_seconds())

    async def _connection(self) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(self.database.url, autocommit=True)
        connection.prepare_threshold = 0
        return connection

    # -- afterwards ----------------------------------------------------------------------------------
    def check(self) -> None:
        """Each job exactly once; with `stop_at`, no job twice."""
        never, once = self._seen.count(0), self._seen.count(1)
        twice = self.jobs - never - once
        if twice or (never and self.stop_at is None) or len(self._seen) - never != self.got:
            raise HandedOutWrongly(f"{self.design.name}: {twice} handed out twice, {never} of {self.jobs} never")

    def whole(self) -> Window:
        """What was done last, from its beginning to its end."""
        return Window.between(self._samples[0], self._samples[-1])

    def windows(self) -> list[Window]:
        """The same in parts, one after the other."""
        return [Window.between(*pair) for pair in zip(self._samples, self._samples[1:], strict=False)]
