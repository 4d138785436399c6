"""The law of a caller's transaction: only INSERT and plain SELECT; no lock on a row that was there, no NOTIFY, no COMMIT."""

import re
from contextlib import contextmanager

import psycopg
import pytest

from perdure import Limit, Unique
from perdure.core.ids import new_id
from perdure.storage.postgres.connection.signals import channel_of
from perdure.storage.postgres.schema import TABLES

from .callers import with_every_caller
from .tools import schema_of

NEVER = re.compile(
    r"\b(update|delete|merge|lock|notify|listen|unlisten|pg_notify|set|set_config|reset|commit|rollback|savepoint|release|"
    r"truncate|create|alter|drop|for\s+(no\s+key\s+)?update|for\s+(key\s+)?share|pg_advisory\w*|nextval|copy)\b",
    re.IGNORECASE,
)
UNIQUES = [
    Unique("k", scope="waiting"),
    Unique("k2", scope="active"),
    Unique("k3", scope="any"),
    Unique("k4", scope="window", window=60),
]


@pytest.fixture
def limited(app):
    @app.task(limit=Limit(max_running=1))
    async def limited(): ...

    return limited


def kinds_of_enqueue(task, limited):
    """Every kind of job that can join: plain, delayed, under a limit, for a fair queue, after another, with keys that are
    free and keys that are taken."""
    yield task
    yield limited
    yield task.using(queue="fair", tenant="t")
    yield task.using(after=[new_id()])
    yield task.using(delay=60, tags=["x"], key="e", tenant="t", routing_key="r", meta={"a": "b"})
    for unique in UNIQUES:
        yield task.using(unique=unique)
        yield task.using(unique=Unique(f"{unique.key} of mine", scope=unique.scope, window=unique.window))


async def test_nothing_but_insert_and_plain_select_is_sent(app, task, limited, dsn, tmp_path):
    async with app:
        for unique in UNIQUES:
            await task.using(unique=unique).enqueue()
        with psycopg.connect(dsn, prepare_threshold=None) as connection, _recorded(connection, tmp_path) as record:
            for each in kinds_of_enqueue(task, limited):
                await each.using(connection=connection).enqueue()
            statements = record()
    begin, *statements = statements
    assert begin.startswith("BEGIN")  # by the driver
    assert len(statements) == 1 + 5 + 8 * 3  # the question, plain jobs, jobs with keys
    for statement in statements:
        assert statement.startswith(("WITH given AS", "SELECT ")), statement
        assert not NEVER.search(statement.replace("ON CONFLICT", "")), statement


async def test_a_known_connection_is_asked_nothing(app, task, dsn, tmp_path):
    """One statement for a list of plain jobs."""
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn, prepare_threshold=None) as connection:
            await task.using(connection=connection).enqueue()
            connection.commit()
            with _recorded(connection, tmp_path) as record:
                await app.enqueue([task.call(n) for n in range(100)], connection=connection)
                begin, insert = record()
    assert begin.startswith("BEGIN")
    assert insert.startswith("WITH given AS")


@contextmanager
def _recorded(connection, folder):
    """Gives a function that gives what was sent since."""

    def record():
        connection.pgconn.untrace()
        trace.seek(0)
        return _sent(trace.read())

    with (folder / "trace").open("w+") as trace:
        connection.pgconn.trace(trace.fileno())
        connection.pgconn.set_trace_flags(psycopg.pq.Trace.SUPPRESS_TIMESTAMPS)
        yield record
        connection.pgconn.untrace()
        connection.rollback()


def _sent(trace):
    """The statements that a client sent, by libpq's own record of the messages."""
    messages = re.split(r"^([FB]\t\d+\t\w+)", trace, flags=re.MULTILINE)[1:]
    sent = [
        text for head, text in zip(messages[::2], messages[1::2], strict=True) if re.match(r"F.*(Query|Parse)$", head)
    ]
    return [re.sub(r'^\s+("\w*" )?"', "", text) for text in sent]


@with_every_caller
async def test_nobody_waits_for_the_caller(app, task, limited, dsn, caller_of):
    """While the caller's transaction is open, everybody else may lock every row, and the queue goes on."""
    async with app, caller_of(dsn) as caller:
        for unique in UNIQUES:
            await task.using(unique=unique).enqueue()
        await app.queues.configure("bounded", max_depth=100)
        await app.queues.configure("fair", fair=True)
        await caller.begin()
        for each in kinds_of_enqueue(task, limited):
            await each.using(connection=caller.connection).enqueue()
        await task.using(queue="bounded", connection=caller.connection).enqueue()
        [(backend,)] = await caller.fetch("select pg_backend_pid()")
        with psycopg.connect(dsn) as other:
            for table in (*TABLES, "meta"):
                other.execute(f'select * from "{schema_of(app)}".{table} for update nowait'.encode())
            other.rollback()
            locks = other.execute(
                "select locktype, mode from pg_locks where pid = %s and granted"
                " and locktype not in ('virtualxid', 'transactionid')",
                (backend,),
            ).fetchall()
        assert set(locks) <= {("relation", "AccessShareLock"), ("relation", "RowExclusiveLock")}
        await _pieces_can_be_made(dsn, schema_of(app))
        async with app.worker():  # four jobs that were there before
            for unique in UNIQUES:
                handle = await task.using(unique=Unique(f"{unique.key} outside")).enqueue(1)
                assert await handle.result(timeout=10) == 1
            assert await app.jobs.count(state="succeeded") == 8
        await caller.commit()
        assert await app.jobs.count() == 8 + 10


async def _pieces_can_be_made(dsn, schema):
    """The days to come get their partitions, although the caller's transaction is open."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        for ahead in range(6):
            made = await connection.execute(f'select "{schema}".make_partition({ahead})'.encode())
            assert await made.fetchone() == (True,)
        made = await connection.execute(
            "select count(*) from pg_inherits where inhparent = %s::regclass", (f'"{schema}".jobs',)
        )
        assert (await made.fetchone())[0] >= 6 + 1  # and the one for the rest


async def test_no_word_to_listeners(app, task, dsn):
    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn, autocommit=True) as listener, psycopg.connect(dsn) as connection:
            listener.execute(f'listen "{channel_of(schema_of(app))}"'.encode())
            await task.using(connection=connection).enqueue()
            connection.commit()
            assert list(listener.notifies(timeout=0.5)) == []
            await app.signal("default")
            assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
