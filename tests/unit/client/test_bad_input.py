"""Bad input gets a clear error before anything is stored, the same on every store."""

import math
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from perdure import Backoff, InvalidCall, Perdure, Retention, StoreError, Unique
from tests.support import addresses


@pytest.fixture(params=addresses.NAMES)
def app(request, tmp_path):
    app = Perdure(addresses.address(request.param, tmp_path))

    @app.task
    async def task(number: int, extra: object = None) -> int: ...

    app.bad = task
    return app


def deep(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


ARGUMENTS = [
    (),
    ("1",),
    (1, 2, 3),
    (None,),
    (1.5,),
    (True,),
    (2**63,),
    (1, math.nan),
    (1, math.inf),
    (1, float("1e400")),
    (1, [[math.nan]]),
    (1, 2**64),
    (1, object()),
    (1, {1, object()}),
    (1, "\ud800"),
    (1, {"\udcff": 1}),
    (1, deep(65)),
    (1, deep(3000)),
    (1, {1: 1, "1": 2}),
    (1, {(1,): 1}),
    (1, "x" * (1 << 20)),
    (1, "é" * (1 << 19)),
    (1, list(range(1_000_000))),
    (1, [[0] * 1000] * 1_000_000),
    (1, b"bytes"),
    (1, {1, 2}),
    (1, (1, 2)),
    (1, {1: 2}),
]


async def test_wrong_arguments(app):
    unique = app.bad.using(queue="q", unique=Unique())
    for arguments in ARGUMENTS:
        for enqueue in (app.bad.enqueue, unique.enqueue):
            with pytest.raises(InvalidCall, match=r"^task: "):
                await enqueue(*arguments)
        with pytest.raises(InvalidCall, match=r"^task: "):
            app.bad.call(*arguments)
    assert await app.jobs.count() == 0
    await app.close()


OPTIONS = [
    dict(delay=-1),
    dict(delay=math.nan),
    dict(delay=timedelta(-1)),
    dict(delay=5, at=datetime(2040, 1, 1, tzinfo=UTC)),
    dict(at=datetime(2040, 1, 1)),
    dict(queue=""),
    dict(queue="a\nb"),
    dict(queue="a\x1fb"),
    dict(queue="x" * 201),
    dict(tenant="a\x00b"),
    dict(routing_key="\u2028"),
    dict(key="x" * 513),
    dict(key="\ud800"),
    dict(tags=["\n"]),
    dict(meta={"a": None}),
    dict(priority=2**31),
    dict(max_attempts=0),
    dict(timeout=0),
    dict(expires=-1),
    dict(unknown=1),
]


async def test_wrong_options(app):
    for options in OPTIONS:
        with pytest.raises(InvalidCall, match=r"^task\.using"):
            app.bad.using(**options)
    assert await app.jobs.count() == 0
    await app.close()


async def test_the_longest_of_everything_comes_back_bit_by_bit(app):
    name = "n" * 200
    key = "k" * 512
    text = 'NUL \x00 quote " \\ \u2028 \U0001f600 é ' * 1000
    task = app.bad.using(
        queue=name,
        key=key,
        tenant=name,
        routing_key="é" * 100,
        tags=[name, "ü"],
        meta={"k": text[:100]},
        unique=Unique(key),
        priority=2**31 - 1,
        backoff=Backoff.fixed(1),
        retention=Retention.keep(),
    )
    handle = await task.enqueue(2**63 - 1, {"text": text, "deep": deep(63), "floats": [1e-300, 5e-324, 0.1, -0.0]})
    job = await handle.refresh()
    assert (job.queue, job.key, job.tenant, job.routing_key) == (name, key, name, "é" * 100)
    assert (job.tags, job.meta, job.priority) == ((name, "ü"), {"k": text[:100]}, 2**31 - 1)
    (number, extra), _ = app.definitions()["task"].arguments(job.payload)
    assert number == 2**63 - 1
    assert extra == {"text": text, "deep": deep(63), "floats": [1e-300, 5e-324, 0.1, -0.0]}
    assert (await task.enqueue(1)).duplicate
    await app.close()


async def test_a_payload_of_just_the_limit(app):
    room = (1 << 20) - len('{"number":1,"extra":""}')
    job = await app.bad.enqueue(1, "x" * room)
    assert len((await job.refresh()).payload) == 1 << 20
    with pytest.raises(InvalidCall, match="more than 1048576"):
        await app.bad.enqueue(1, "x" * (room + 1))
    await app.close()


TYPOS = [
    ("jobs.db", "scheme"),
    ("sqlit:///jobs.db", "did you mean sqlite"),
    ("sqlite:/jobs.db", "three slashes"),
    ("sqlite://jobs.db", "three slashes"),
    ("sqlite:///", "names a file"),
    ("sqlite:///x.db?jurnal=wal", "did you mean journal"),
    ("sqlite:///x.db?journal=fast", "one of"),
    ("memory://x", "nothing behind it"),
    ("http://example", "unknown store"),
    ("postgresql://localhost/x?shema=jobs", "unknown option 'shema'"),
    ("postgresql://localhost/x?schema=Jobs", "lower-case"),
    ("redis://localhost/x", "."),
    ("mongo://localhost/x", "did you mean mongodb"),
]


@pytest.mark.parametrize(("url", "words"), TYPOS, ids=[url for url, _ in TYPOS])
async def test_a_url_with_a_typo(url, words):
    app = Perdure(url)  # nothing opens before the first verb

    @app.task
    async def task(): ...

    for _ in range(2):
        with pytest.raises(StoreError, match=words):
            await task.enqueue()
    with pytest.raises(StoreError, match=words):
        await app.jobs.count()


async def open_fails(url, words):
    app = Perdure(url)

    @app.task
    async def task(): ...

    with pytest.raises(StoreError, match=words):
        await task.enqueue()
    with pytest.raises(StoreError, match=words):
        await app.enqueue([task.call()])
    await app.close()


async def test_files_that_cannot_be_a_store(tmp_path):
    await open_fails(f"sqlite:///{tmp_path}/no/such/folder/jobs.db", "does not exist")
    await open_fails(f"sqlite:///{tmp_path}", "is a directory")
    text = tmp_path / "text.db"
    text.write_text("this is no database, but it is long enough to look like one" * 100)
    await open_fails(f"sqlite:///{text}", "not a (SQLite )?database|not a database")
    assert text.read_text().startswith("this is no database")


async def test_a_file_of_a_newer_version_is_left_alone(tmp_path):
    path = tmp_path / "jobs.db"
    app = Perdure(f"sqlite:///{path}")
    await app.jobs.count()
    await app.close()
    connection = sqlite3.connect(path)
    connection.execute("update perdure_meta set value = '999' where name = 'schema'")
    connection.commit()
    connection.close()
    await open_fails(f"sqlite:///{path}", "newer")


async def test_without_migration_missing_tables_are_told(tmp_path):
    path = tmp_path / "jobs.db"
    sqlite3.connect(path).close()
    app = Perdure(f"sqlite:///{path}", migrate=False)
    with pytest.raises(StoreError, match="perdure migrate"):
        await app.jobs.count()
    await app.close()
