"""Wake-ups: lossy, but quick, and never for what failed or was rolled back."""

import asyncio
import os
import sqlite3
import sys
import time

import pytest

from perdure.storage.contract import Filter
from perdure.storage.sqlite.connection.database_file import DatabaseFile
from perdure.storage.sqlite.wakeups.wakeup_thread import Watch, _Delays

from .helpers import claim, finish, job, line, process, store_at

linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify")


def sockets(path):
    return [name for name in os.listdir(f"{path}-perdure") if name.endswith(".socket")]


async def woken(event, seconds=30.0):
    await asyncio.wait_for(event.wait(), seconds)
    event.clear()


async def test_another_process_wakes_us_by_queue(tmp_path):
    path = tmp_path / "jobs.db"
    mail, other_queue = asyncio.Event(), asyncio.Event()
    async with store_at(path) as store:
        store.listen("ready", mail.set, frozenset({"mail"}))
        store.listen("ready", other_queue.set, frozenset({"other"}))
        # only the datagrams are to be heard here, not the file itself
        store._shared.signals._receiver._is_ours = lambda moment: True
        other = process(
            path,
            """
            async def main():
                async with store_at(path) as store:
                    await store.enqueue([job(queue="mail")])
            asyncio.run(main())
            """,
        )
        await woken(mail, 30)
        finish(other)
        assert not other_queue.is_set()


async def test_how_quickly_another_process_wakes_us(tmp_path, machine):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        event = asyncio.Event()
        store.listen("ready", event.set)
        other = process(
            path,
            """
            async def main():
                async with store_at(path) as store:
                    for _ in range(20):
                        say("next")
                        sys.stdin.readline()
                        await store.enqueue([job()])
                        say(time.time())
            asyncio.run(main())
            """,
        )
        delays = []
        for _ in range(20):
            assert await line(other) == "next"
            event.clear()
            other.stdin.write("\n")
            other.stdin.flush()
            await woken(event)
            heard = time.time()
            delays.append(heard - float(await line(other)))
        finish(other)
        assert sorted(delays)[10] < machine.seconds(0.05)


@pytest.mark.parametrize("turns", [True, False], ids=["in turn", "without turns"])
@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
async def test_who_claims_at_the_signal_finds_the_job(tmp_path, scheme, turns):
    """It comes before the commit; whoever heeds it has to wait for that."""
    if scheme == "sqlite+apsw":
        pytest.importorskip("apsw")
    path = tmp_path / "jobs.db"
    async with store_at(path, scheme=scheme) as store:
        event = asyncio.Event()
        store.listen("ready", event.set)
        # only the datagrams are to be heard here, not the file itself
        store._shared.signals._receiver._is_ours = lambda moment: True
        other = process(
            path,
            """
            async def main():
                async with store_at(path, scheme=sys.argv[2]) as store:
                    if sys.argv[3] == "False":
                        store._shared.database.write_lock.close()
                    for _ in range(20):
                        sys.stdin.readline()
                        await store.enqueue([job()])
            asyncio.run(main())
            """,
            scheme,
            turns,
        )
        if not turns:
            store._shared.database.write_lock.close()
        for _ in range(20):
            other.stdin.write("\n")
            other.stdin.flush()
            await woken(event, 30)
            assert len((await store.exchange((), claim())).claimed) == 1
        finish(other)


async def test_the_signal_does_not_wait_for_the_commit(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path, query="?journal=truncate") as store:
        event = asyncio.Event()
        store.listen("ready", event.set)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("begin")
        reader.execute("select * from perdure_jobs").fetchone()
        storing = asyncio.ensure_future(store.enqueue([job()]))
        await woken(event)
        assert not storing.done()  # a reader is in its way
        claiming = asyncio.ensure_future(store.exchange((), claim()))
        reader.close()
        assert len((await asyncio.wait_for(claiming, 20)).claimed) == 1
        assert storing.done()


async def test_job_ends_are_told_to_who_listens_for_them(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job()])
        changed = asyncio.Event()
        stop = store.listen("changed", changed.set)
        assert [name.partition("-")[0] for name in sockets(path)] == ["changed"]
        other = process(
            path,
            """
            async def main():
                async with store_at(path) as store:
                    claimed = (await store.exchange((), claim())).claimed
                    await store.apply([decide(record, Succeeded()) for record in claimed])
            asyncio.run(main())
            """,
        )
        await woken(changed, 30)
        finish(other)
        stop()
        assert sockets(path) == []


async def test_sockets_of_the_dead_are_removed(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        other = process(
            path,
            """
            async def main():
                async with store_at(path) as store:
                    store.listen("ready", lambda: None)
                    say("listening")
                    os.kill(os.getpid(), signal.SIGKILL)
            asyncio.run(main())
            """,
        )
        assert await line(other) == "listening"
        other.wait(10)
        other.stdout.close()
        other.stdin.close()
        assert len(sockets(path)) == 1
        await store.enqueue([job()])
        assert sockets(path) == []


async def test_a_long_path_can_be_listened_at(tmp_path):
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    event = asyncio.Event()
    async with store_at(directory / "jobs.db") as store:
        store.listen("ready", event.set)
        assert len(sockets(directory / "jobs.db")) == 1
        await store.enqueue([job()])
        await woken(event)


@linux
@pytest.mark.parametrize("journal", ["truncate", "wal"])
async def test_a_raw_commit_wakes_us(tmp_path, journal):
    path = tmp_path / "jobs.db"
    event = asyncio.Event()
    async with store_at(path, query=f"?journal={journal}", durability="relaxed") as store:
        await store.enqueue([job()])
        await store.exchange((), claim())
        store.listen("ready", event.set)
        insertion = store.caller_statements([job(queue="raw")])
        # a write of our own just before would hide the other's
        await asyncio.sleep(0.1)
        raw = sqlite3.connect(path)
        for statement, text in insertion.inserts:
            raw.execute(statement, (text,))
        raw.commit()
        raw.close()
        while not (claimed := (await store.exchange((), claim())).claimed):
            await woken(event)
        assert claimed[0].queue == "raw"


@linux
async def test_what_is_rolled_back_leaves_nothing_and_wakes_nobody(tmp_path):
    path = tmp_path / "jobs.db"
    event = asyncio.Event()
    async with store_at(path) as store:
        store.listen("ready", event.set)
        await asyncio.sleep(0.1)
        insertion = store.caller_statements([job(), job(unique_key="k", unique_scope="any")])
        raw = sqlite3.connect(path)
        for statement, text in insertion.inserts:
            raw.execute(statement, (text,))
        assert len(raw.execute(*insertion.readback[:1], insertion.readback[1:]).fetchall()) == 2
        raw.rollback()
        raw.close()
        with pytest.raises(TimeoutError):
            await woken(event, 0.15)
        assert await store.count(Filter()) == 0
        transaction = await store.begin_transaction(5_000_000)
        await transaction.enqueue([job()])
        await transaction.rollback()
        with pytest.raises(TimeoutError):
            await woken(event, 0.15)
        assert await store.count(Filter()) == 0


@linux
async def test_our_own_writes_do_not_come_back_to_us(tmp_path):
    event = asyncio.Event()
    async with store_at(tmp_path / "jobs.db") as store:
        store.listen("ready", event.set)
        await asyncio.sleep(0.1)
        await store.enqueue([job(waits=1)])
        with pytest.raises(TimeoutError):
            await woken(event, 0.15)


@linux
def test_a_write_is_known_by_the_date_of_the_file_however_late_it_is_heard_of(tmp_path):
    path = tmp_path / "jobs.db"
    path.write_bytes(b"x")
    delays = _Delays(Watch(DatabaseFile(path)))
    os.utime(path, (1_000.0, 1_000.0))
    delays.note_write()
    while (date := delays.due()) is None:
        time.sleep(delays.wait())
    assert date == 1_000.0


async def test_a_signal_never_raises(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await store.signal(["mail"])
        await store.signal(["x" * 100] * 1000)
    await store.signal(["mail"])
