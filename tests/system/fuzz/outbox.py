"""Bad values in every field of an outbox, and what must hold in spite of them.

Every other row of the outbox gets one bad value. Then a relay moves what can be moved: it raises nothing, every job whose
row was not spoiled is on record at the store, a job that is put into the outbox now arrives within 2 s, and every look at
the outbox raises nothing, or one of our own errors.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import psycopg

from perdure import PerdureError
from perdure.core.record import NewJob
from perdure.outbox.relay import Relay
from perdure.storage.contract import CallerStatements, Storage
from perdure.storage.outbox import Outbox
from perdure.storage.postgres.address import address_of
from perdure.storage.urls import opener, outbox_opener
from tests.support.machine import Machine

from .harness import CANARY_WITHIN, Failure, chosen, drawn, listen_to_log
from .report import ASIDE, MISSING, REFUSED, TOLERATED, Outcome, Report
from .target import Missing, Mutation, Refused
from .values import BYTES, NOTHING, NUMBERS, TEXTS
from .world import new_job

AT_ONCE = 200
TABLE = "perdure_outbox"
SQL_NUMBERS = {**NOTHING, **NUMBERS, "a word": "nonsense"}
SQL_TEXTS = {**NOTHING, **TEXTS, **BYTES}
JOBS = {  # texts that are jobs, with one bad field
    f"{field} = {value!r}": {field: value}
    for field, value in (
        ("id", "nonsense"), ("id", ""), ("queue", ""), ("task", "x" * 70_000), ("priority", 1 << 62), ("delay", -(1 << 62)),
        ("at", 1 << 62), ("expires", 1 << 62), ("payload", "nonsense"), ("after", "nonsense"), ("limits", "nonsense"),
        ("lease", -1), ("backoff", "nonsense"), ("tags", "{"), ("unique_scope", "nonsense"), ("min_version", 99),
        ("waits", -5),
    )
}  # fmt: skip


class OutboxTarget(ABC):
    """An outbox under the fuzzer."""

    url: str
    left_alone = {"perdure_outbox_meta": "test_ledger.py spoils it"}

    def mutations(self) -> list[Mutation]:
        found = []
        for column, is_text in self.columns():
            for name, value in (SQL_TEXTS if is_text else SQL_NUMBERS).items():
                found.append(self._mutation(column, name, value))
        found += [self._mutation("job", name, _job_text(**fields)) for name, fields in JOBS.items()]
        return found

    def _mutation(self, column: str, name: str, value: object) -> Mutation:
        def write(job: str) -> str:
            self.write(job, column, value)
            return job

        return Mutation(f"outbox.{column}", name, write)

    @abstractmethod
    def columns(self) -> list[tuple[str, bool]]:
        """The columns of the table, and which of them are texts."""

    @abstractmethod
    def write(self, job: str, column: str, value: object) -> None:
        """Write a value into the row of a job."""

    @abstractmethod
    def insert(self, insertion: CallerStatements) -> None:
        """Put jobs into the outbox, in a transaction of the caller's."""

    @abstractmethod
    def waiting(self) -> dict[int, bool]:
        """The rows by number, and which of them are set aside."""

    @abstractmethod
    def number(self, job: str) -> int:
        """The number of a job's row."""

    @abstractmethod
    def close(self) -> None:
        """Close connections of its own."""


class SqliteOutboxTarget(OutboxTarget):
    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._raw = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)

    def columns(self) -> list[tuple[str, bool]]:
        found = self._raw.execute(f"SELECT name, type FROM pragma_table_info('{TABLE}')").fetchall()
        return [(name, kind == "TEXT") for name, kind in found]

    def write(self, job: str, column: str, value: object) -> None:
        given = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        try:
            changed = self._raw.execute(f"UPDATE {TABLE} SET {column} = {given} WHERE id = ?", [value, job]).rowcount
        except (sqlite3.IntegrityError, sqlite3.OperationalError, OverflowError) as refused:
            raise Refused(str(refused)) from None
        if not changed:
            raise Missing

    def insert(self, insertion: CallerStatements) -> None:
        for statement, text in insertion.inserts:
            self._raw.execute(statement, (text,))

    def waiting(self) -> dict[int, bool]:
        return dict(self._raw.execute(f"SELECT number, set_aside_at IS NOT NULL FROM {TABLE}").fetchall())

    def number(self, job: str) -> int:
        return int(self._raw.execute(f"SELECT number FROM {TABLE} WHERE id = ?", [job]).fetchone()[0])

    def close(self) -> None:
        self._raw.close()


class PostgresOutboxTarget(OutboxTarget):
    def __init__(self, url: str) -> None:
        self.url = url
        self._schema = f'"{address_of(url).schema}"'
        self._raw = psycopg.connect(address_of(url).dsn, autocommit=True)

    def columns(self) -> list[tuple[str, bool]]:
        found = self._asked(
            "SELECT attname, atttypid = 'text'::regtype FROM pg_attribute "
            f"WHERE attrelid = '{self._schema}.{TABLE}'::regclass AND attnum > 0 AND attidentity = ''"
        )
        return [(name, is_text) for name, is_text in found]

    def write(self, job: str, column: str, value: object) -> None:
        given = "convert_from(%s, 'UTF8')" if isinstance(value, bytes) else "%s"
        statement = f"UPDATE {self._schema}.{TABLE} SET {column} = {given} WHERE id = %s"
        try:
            changed = self._raw.execute(statement, [value, job]).rowcount  # type: ignore[arg-type]
        except (
            psycopg.DataError,
            psycopg.IntegrityError,
            psycopg.OperationalError,
            psycopg.ProgrammingError,
        ) as refused:
            raise Refused(str(refused)) from None
        if not changed:
            raise Missing

    def insert(self, insertion: CallerStatements) -> None:
        for statement, text in insertion.inserts:
            self._raw.execute(statement.replace("?", "%s").encode(), (text,))

    def waiting(self) -> dict[int, bool]:
        return dict(self._asked(f"SELECT number, set_aside_at IS NOT NULL FROM {self._schema}.{TABLE}"))

    def number(self, job: str) -> int:
        return int(self._asked(f"SELECT number FROM {self._schema}.{TABLE} WHERE id = %s", [job])[0][0])

    def close(self) -> None:
        self._raw.close()

    def _asked(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        return self._raw.execute(statement, values or None).fetchall()  # type: ignore[arg-type]


def _job_text(**fields: object) -> str:
    return json.dumps({**msgspec.to_builtins(new_job()), **fields})


async def run_outbox(target: OutboxTarget, *, seed: int, count: int, only: Collection[str] | None = None) -> Report:
    """Try `count` mutations of the outbox, or only those of these names. `Failure` says what does not hold."""
    outbox = outbox_opener(target.url)()
    store = opener("memory://", durability="relaxed")()
    report = Report()
    try:
        await outbox.open()
        await store.open()
        every = await asyncio.to_thread(target.mutations)
        todo = chosen(every, only) if only is not None else drawn(every, count, random.Random(seed))
        for begin in range(0, len(todo), AT_ONCE):
            mutations = todo[begin : begin + AT_ONCE]
            try:
                with listen_to_log() as lines:
                    await _round(target, outbox, store, mutations, report)
                assert not lines.too_often(), f"logged more than once a minute: {lines.too_often()[:5]}"
                await outbox.bring_back()  # as an operator would
                await Relay(_given(outbox), _given(store)).once()
            except Exception as error:
                names = sorted({mutation.name for mutation in mutations})
                raise Failure(f"{type(error).__name__}: {error}", names) from error
    finally:
        target.close()
        await outbox.close()
        await store.close()
    return report


async def _round(
    target: OutboxTarget, outbox: Outbox, store: Storage, mutations: Sequence[Mutation], report: Report
) -> None:
    jobs = [new_job() for _ in range(2 * len(mutations))]
    await asyncio.to_thread(target.insert, outbox.caller_statements(jobs))
    written: dict[int, Mutation] = {}
    for mutation, job in zip(mutations, jobs[::2], strict=True):
        number = await asyncio.to_thread(target.number, job.id)
        try:
            await asyncio.to_thread(mutation.write, job.id)
            written[number] = mutation
        except (Refused, Missing) as refused:
            fate = REFUSED if isinstance(refused, Refused) else MISSING
            report.outcomes.append(Outcome(mutation, fate))
    await _look(outbox)
    relay = Relay(_given(outbox), _given(store))
    await relay.once()  # a row with the largest number leaves no number for others until it is moved
    report.canaries.append(await _canary(target, outbox, store, relay))
    await _check_moved(store, jobs[1::2])
    await _look(outbox)
    left = await asyncio.to_thread(target.waiting)
    for number, mutation in written.items():
        report.outcomes.append(Outcome(mutation, ASIDE if left.get(number) else TOLERATED))


async def _canary(target: OutboxTarget, outbox: Outbox, store: Storage, relay: Relay) -> float:
    """Seconds that a job takes from the outbox to its store."""
    job = new_job()
    with Machine() as machine:
        began = monotonic()
        await asyncio.to_thread(target.insert, outbox.caller_statements([job]))
        await relay.once()
        await _check_moved(store, [job])
        took = monotonic() - began
    assert took < machine.seconds(CANARY_WITHIN), f"the canary took {took:.1f} s, {CANARY_WITHIN} s at most"
    return took


async def _check_moved(store: Storage, jobs: Sequence[NewJob]) -> None:
    records = await store.get([job.id for job in jobs])
    lost = [job.id for job, record in zip(jobs, records, strict=True) if record is None]
    assert not lost, f"{len(lost)} jobs whose rows were not spoiled did not arrive: {lost[:5]}"


async def _look(outbox: Outbox) -> None:
    for look in (outbox.state, lambda: outbox.list_aside(100_000)):
        try:
            await look()
        except PerdureError:
            continue


def _given(value: Any) -> Any:
    async def give() -> Any:
        return value

    return give
