"""`perdure relay` and `perdure migrate --outbox`."""

import asyncio
import json
import signal
import sqlite3
import time

import pytest


@pytest.fixture
def boxed(shop):
    """The shop with an outbox in a file of its own; gives a function that enqueues in a caller's transaction there."""
    url = f"sqlite:///{shop.folder / 'orders.db'}"
    source = shop.source.replace("Perdure(", f"Perdure(outbox={url!r}, *[").replace(", backoff", "], backoff", 1)
    (shop.folder / "shop.py").write_text(source)
    names: dict = {"__name__": "shop"}
    exec(source, names)
    app = names["app"]

    async def write(count):
        async with app:
            await app._runtime.loops.outboxes.get()
            with sqlite3.connect(shop.folder / "orders.db") as database:
                for number in range(count):
                    await names["add"].using(connection=database).enqueue(number, 1)
            database.close()

    def enqueue(count):
        asyncio.run(write(count))

    enqueue.url, enqueue.app = url, app
    return enqueue


def test_once_moves_what_is_there_and_says_how_it_stands(shop, boxed):
    boxed(3)
    standing = shop.json("relay", "--app", "shop:app")
    assert (standing["moved"], standing["waiting"], standing["set_aside"], standing["errors"]) == (0, 3, 0, [])
    assert 0 < standing["oldest"] < 60
    moved = shop.json("relay", "--app", "shop:app", "--once")
    assert (moved["moved"], moved["waiting"], moved["oldest"], moved["set_aside"]) == (3, 0, None, 0)
    assert len(shop.json("jobs", "list")["jobs"]) == 3
    told = shop.perdure("relay", "--app", "shop:app", "--status")
    assert told.exit_code == 0
    assert told.stdout.splitlines()[1].split() == ["waiting", "0", "jobs"]


def test_it_works_by_addresses_alone(shop, boxed):
    boxed(2)
    shop.json("queues", "list", "--app", "shop:app")  # the store's own tables
    assert shop.json("relay", "--url", shop.url, "--outbox", boxed.url, "--once")["moved"] == 2


def test_rows_that_were_set_aside_are_shown_and_tried_again(shop, boxed):
    boxed(1)
    with sqlite3.connect(shop.folder / "orders.db") as database:
        database.execute(
            "insert into perdure_outbox (enqueued_at, min_version, id, queue, job) "
            "values (1, 1, 'x\x1b[31m', 'q', 'poison')"
        )
    database.close()
    moved = shop.json("relay", "--app", "shop:app", "--once")
    assert (moved["moved"], moved["set_aside"]) == (1, 1)
    assert moved["errors"][0]["id"] == "x\x1b[31m"
    told = shop.perdure("relay", "--app", "shop:app", "--status")
    assert "it holds no job" in told.stdout
    assert "\x1b" not in told.stdout
    assert shop.json("relay", "--app", "shop:app", "--retry")["waiting"] == 1
    assert shop.json("relay", "--app", "shop:app", "--once")["set_aside"] == 1


def test_the_doctor_looks_at_the_outbox(shop, boxed):
    boxed(1)
    shop.json("queues", "list", "--app", "shop:app")
    assert outbox_check(shop) == ("ok", "1 job in it, the oldest for 0s")
    change(shop, "update perdure_outbox set enqueued_at = enqueued_at - 7200000000")
    status, found = outbox_check(shop)
    assert (status, found.startswith("1 job in it, the oldest for 2h")) == ("warn", True)
    change(shop, "update perdure_outbox set set_aside_at = 1, error = 'bad'")
    assert outbox_check(shop)[1].startswith("1 row set aside")
    shop.json("relay", "--app", "shop:app", "--once", "--retry")
    assert outbox_check(shop) == ("ok", "no job waits in it")
    change(shop, "drop table perdure_outbox_meta")
    assert outbox_check(shop)[0] == "fail"


def outbox_check(shop):
    done = shop.perdure("doctor", "--json", "--app", "shop:app")
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "outbox"]
    return check["status"], check["found"]


def change(shop, statement):
    with sqlite3.connect(shop.folder / "orders.db") as database:
        database.execute(statement)
    database.close()


def test_it_runs_until_it_is_told_to_stop(shop, boxed):
    process = shop.process("relay", "--app", "shop:app")
    try:
        boxed(4)
        until = time.monotonic() + 30
        while len(shop.json("jobs", "list", "--app", "shop:app")["jobs"]) < 4:
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["relay"], "which outbox?"),
        (["relay", "--app", "shop:app"], "has no outbox"),
        (["relay", "--app", "shop:app", "--outbox", "sqlite:///x.db"], "--app names its own outbox"),
        (["relay", "--url", "memory://", "--outbox", "sqlite:///x.db"], "a store in memory"),
        (["relay", "--outbox", "redis://localhost"], "outbox= is the URL of the database"),
        (["relay", "--outbox", "sqlite:///x.db", "--once", "--status"], "give one of them"),
        (["migrate", "--outbox", "sqlite:///x.db", "--url", "sqlite:///y.db"], "--outbox names a database of its own"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_told(shop, arguments, told):
    done = shop.perdure(*arguments)
    assert done.exit_code == 2
    assert told in done.stderr


def test_the_outbox_is_migrated_by_its_own_word(shop):
    url = f"sqlite:///{shop.folder / 'orders.db'}"
    assert shop.perdure("migrate", "status", "--outbox", url).exit_code == 1
    assert "CREATE TABLE perdure_outbox" in shop.perdure("migrate", "--dry-run", "--outbox", url).stdout
    assert not (shop.folder / "orders.db").exists()
    assert shop.perdure("migrate", "--outbox", url).stdout == "migrated: 0001 outbox\n"
    assert json.loads(shop.perdure("migrate", "status", "--json", "--outbox", url).stdout)["pending"] == []
    with sqlite3.connect(shop.folder / "orders.db") as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where name like 'perdure%'")}
    database.close()
    assert tables == {"perdure_outbox", "perdure_outbox_meta"}
