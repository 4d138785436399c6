"""Whatever is wrong with a store, a command says so in one sentence and ends with exit code 1, without a traceback."""

import sqlite3
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from perdure import Perdure
from perdure.cli.root import perdure
from tests.support.addresses import OF_EACH_KIND, address

ID = "01900000-0000-7000-8000-000000000003"
LISTINGS = [
    ["jobs", "list"],
    ["jobs", "list", "--state", "ready"],
    ["jobs", "get", ID],
    ["jobs", "count"],
    ["jobs", "log", ID],
    ["dead", "list"],
    ["dead", "retry-all", "--yes"],
    ["queues", "list"],
    ["schedules", "list"],
    ["workers", "list"],
]


def says_one_sentence(url: str, command: list[str]) -> None:
    for more in ([], ["--json"]):
        done = CliRunner().invoke(perdure, [*command, "--url", url, *more])
        assert isinstance(done.exception, SystemExit), (command, done.exception)
        assert done.exit_code == 1, (command, done.output)
        assert done.stderr.startswith("perdure: "), (command, done.output)
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.output


@pytest.fixture(params=LISTINGS, ids=" ".join)
def command(request):
    return request.param


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody@127.0.0.1:1/nothing",
        "redis://127.0.0.1:1/0",
        "mongodb://127.0.0.1:1/nothing?serverSelectionTimeoutMS=200",
        "sqlite:///no/such/folder/jobs.db",
        "sqlite:////dev/null/jobs.db",
        "sqlte:///jobs.db",
        "postgresql://[::1/nothing",
    ],
)
def test_a_store_that_cannot_be_opened(url, monkeypatch):
    says_one_sentence(url, ["jobs", "list"])


@pytest.mark.parametrize("content", [b"", b"hello" * 1000, b"SQLite format 3\0" + b"\xff" * 4096], ids=range(3))
def test_a_file_that_is_no_store(tmp_path, command, content):
    file = tmp_path / "jobs.db"
    file.write_bytes(content)
    says_one_sentence(f"sqlite:///{file}", command)


def test_a_file_with_broken_pages(tmp_path, command):
    file = filled(tmp_path)
    content = bytearray(file.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 2048] = b"\xff" * 2048
    file.write_bytes(content)
    says_one_sentence(f"sqlite:///{file}", command)


def test_a_file_without_its_tables(tmp_path, command):
    file = filled(tmp_path)
    with sqlite3.connect(file) as connection:
        for table in ("perdure_jobs", "perdure_queues", "perdure_workers", "perdure_kv", "perdure_log"):
            connection.execute(f"drop table {table}")
    connection.close()
    says_one_sentence(f"sqlite:///{file}", command)


def filled(folder):
    file = folder / "jobs.db"
    app = Perdure(f"sqlite:///{file}?journal=truncate")

    @app.task
    async def task(number: int) -> None: ...

    with app.sync:
        app.sync.enqueue([task.call(number) for number in range(300)])
    return file


def test_a_server_without_its_tables(tmp_path, command):
    psycopg = pytest.importorskip("psycopg")
    if "postgres" not in OF_EACH_KIND:
        pytest.skip("there is no PostgreSQL here")
    url = address("postgres", tmp_path)
    app = Perdure(url)
    app.sync.migrate()
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    with psycopg.connect(url.partition("?")[0]) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = %s", (schema,)).fetchall()
        dropped = [table for (table,) in tables if table != "meta"]
        assert len(dropped) == len(tables) - 1
        for table in dropped:
            connection.execute(f"drop table if exists {schema}.{table} cascade")
    says_one_sentence(url, command)


def test_an_error_that_nobody_foresaw_is_one_sentence_too(monkeypatch, tmp_path):
    from perdure.admin.queues import Queues

    async def breaks(self):
        raise KeyError("weights")

    monkeypatch.setattr(Queues, "list", breaks)
    Perdure(f"sqlite:///{tmp_path}/jobs.db").sync.migrate()
    done = CliRunner().invoke(perdure, ["queues", "list", "--url", f"sqlite:///{tmp_path}/jobs.db"])
    assert done.exit_code == 1
    assert done.stderr == "perdure: queues failed: KeyError: 'weights' (--debug shows where)\n"
    done = CliRunner().invoke(perdure, ["--debug", "queues", "list", "--url", f"sqlite:///{tmp_path}/jobs.db"])
    assert isinstance(done.exception, KeyError)


def never_a_traceback(url: str, command: list[str]) -> None:
    """What can still be read may be listed: then there is nothing to complain about."""
    done = CliRunner().invoke(perdure, [*command, "--url", url])
    assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
    assert done.exit_code in (0, 1), (command, done.output)
    assert done.exit_code == 0 or done.output.strip(), command
    assert "Traceback" not in done.output


def stored_jobs(url: str) -> None:
    app = Perdure(url)

    @app.task
    async def task(number: int) -> None: ...

    with app.sync:
        app.sync.enqueue([task.call(number) for number in range(20)])
        app.queues.sync.pause("other")


@pytest.mark.skipif("valkey" not in OF_EACH_KIND, reason="there is no Valkey here")
def test_keys_of_another_type(tmp_path, command):
    from redis import Redis

    url = address("valkey", tmp_path)
    stored_jobs(url)
    prefix = parse_qs(urlsplit(url).query)["prefix"][0]
    with Redis.from_url(url.partition("?")[0]) as server:
        keys = [key for key in server.keys(f"*{prefix}*") if not key.endswith(b"meta")]
        assert len(keys) > 3
        for key in keys:
            server.set(key, b"\xff\x00")
    never_a_traceback(url, command)


@pytest.mark.skipif("mongo" not in OF_EACH_KIND, reason="there is no MongoDB here")
def test_documents_of_another_shape(tmp_path, command):
    from pymongo import MongoClient

    url = address("mongo", tmp_path)
    stored_jobs(url)
    with MongoClient(url) as client:
        database = client.get_default_database()
        names = [name for name in database.list_collection_names() if not name.endswith("meta")]
        assert len(names) > 3
        for name in names:
            database[name].update_many(
                {}, [{"$replaceWith": {"_id": "$_id", "state": 7, "name": ["x"], "settings": 1}}]
            )
    never_a_traceback(url, command)
