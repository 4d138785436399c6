"""One writer thread for all loops: group commit, failures alone, callers who go away, forks."""

import asyncio
import json
import os
import sqlite3
import threading

import pytest

from perdure.core.ids import new_id
from perdure.core.lifecycle import Change, HoldGuard, KeyMove, State, Succeeded, decide
from perdure.errors import StoreError
from perdure.storage.contract import Filter, QueueAtCapacity, QueueSettings, Refusal
from perdure.storage.urls import opener

from .helpers import claim, job, store_at


def commits(store):
    """Counts the COMMITs of the writer from now on."""
    seen = []
    store._shared.database.writer().raw.set_trace_callback(lambda text: text == "COMMIT" and seen.append(text))
    return seen


async def held_up(store):
    """Keep the writer busy until the given event is set, so that work gathers in its queue."""
    busy, go = threading.Event(), threading.Event()

    def wait(_):
        busy.set()
        go.wait(10)

    future = store._shared.database.alone(wait)
    await asyncio.to_thread(busy.wait, 10)
    return go, future


async def test_what_waits_shares_one_commit(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        go, _ = await held_up(store)
        seen = commits(store)
        waiting = [asyncio.ensure_future(store.enqueue([job()])) for _ in range(50)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*waiting)
        assert len(seen) == 1
        assert await store.count(Filter()) == 50


async def test_one_that_fails_fails_alone(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        go, _ = await held_up(store)
        good = [job() for _ in range(3)]
        bad = job(priority="not a number")
        waiting = [asyncio.ensure_future(store.enqueue([one])) for one in (good[0], bad, *good[1:])]
        await asyncio.sleep(0)
        go.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(answer, StoreError) for answer in answers] == [False, True, False, False]
        assert [found.id for found in await store.get([one.id for one in good])] == [one.id for one in good]
        assert await store.get([bad.id]) == [None]


async def test_a_full_queue_undoes_nobody_elses_work(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await store.configure(QueueSettings("small", max_depth=1))
        go, _ = await held_up(store)
        seen = commits(store)
        jobs = [job(queue="small"), job(), job(queue="small"), job()]
        waiting = [asyncio.ensure_future(store.enqueue([one])) for one in jobs]
        await asyncio.sleep(0)
        go.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(answer, QueueAtCapacity) for answer in answers] == [False, False, True, False]
        assert len(seen) == 1


async def test_a_refused_success_among_good_ones(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await store.enqueue([job() for _ in range(5)])
        claimed = (await store.exchange((), claim())).claimed
        changes = [decide(record, Succeeded("1")) for record in claimed]
        await store.apply(changes[:1])
        stranger = Change(new_id(), HoldGuard(1, 1), State.SUCCEEDED, key=KeyMove.FREE)
        verdicts = (await store.exchange([*changes, stranger])).verdicts
        assert [verdict.repeated for verdict in verdicts] == [True, False, False, False, False, False]
        assert [verdict.refusal for verdict in verdicts] == [None] * 5 + [Refusal.NOT_FOUND]


async def test_a_caller_who_goes_away_breaks_nothing(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        go, _ = await held_up(store)
        jobs = [job() for _ in range(20)]
        waiting = [asyncio.ensure_future(store.enqueue([one])) for one in jobs]
        await asyncio.sleep(0)
        for one in waiting[::2]:
            one.cancel()
        go.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        found = await store.get([one.id for one in jobs])
        assert all(found[1::2])
        assert (await store.enqueue([job()]))[0].duplicate is False


async def test_callers_cancelled_at_every_moment(tmp_path):
    """Whatever the moment, a call is whole or not there, and the store works on."""
    async with store_at(tmp_path / "jobs.db") as store:
        kept = []
        for moment in range(40):
            pair = [job(), job()]
            waiting = asyncio.ensure_future(store.enqueue(pair))
            for _ in range(moment % 8):
                await asyncio.sleep(0)
            if moment % 3 == 0:
                await asyncio.sleep(0.001)
            waiting.cancel()
            await asyncio.wait([waiting])
            kept.append(pair)
        for pair in kept:
            first, second = await store.get([one.id for one in pair])
            assert (first is None) == (second is None)


async def test_loops_share_one_writer(tmp_path):
    make = opener(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def enqueue():
        store = make()
        await store.open()
        await store.enqueue([job() for _ in range(3)])
        threads = [thread for thread in threading.enumerate() if thread.name == "perdure-sqlite-writer"]
        await store.close()
        return len(threads)

    async with store_at(tmp_path / "jobs.db") as store:
        assert await asyncio.to_thread(asyncio.run, enqueue()) == 1
        assert await store.count(Filter()) == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("perdure-sqlite")]


async def test_a_memory_database_is_shared_and_kept_by_its_opener():
    make = opener("sqlite:///:memory:")
    first = make()
    await first.open()
    await first.enqueue([job()])
    await first.close()
    second = make()
    await second.open()
    assert await second.count(Filter()) == 1
    await second.close()
    other = opener("sqlite:///:memory:")()
    await other.open()
    assert await other.count(Filter()) == 0
    await other.close()


async def test_a_closed_store_says_so(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        pass
    with pytest.raises(StoreError, match="is not open"):
        await store.enqueue([job()])
    await store.close()
    await store.open()
    await store.enqueue([job()])
    await store.close()


async def test_a_commit_waits_for_a_reader_and_the_transaction_stays(tmp_path):
    """On a rollback journal a COMMIT with a reader open is BUSY; only the COMMIT is repeated."""
    path = tmp_path / "jobs.db"
    async with store_at(path, query="?journal=truncate") as store:
        await store.enqueue([job()])
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("begin")
        reader.execute("select * from perdure_jobs").fetchone()
        waiting = asyncio.ensure_future(store.enqueue([job()]))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        reader.execute("commit")
        reader.close()
        await asyncio.wait_for(waiting, 20)
        assert await store.count(Filter()) == 2


async def test_a_forked_child_opens_its_own(tmp_path):
    path = tmp_path / "jobs.db"
    make = opener(f"sqlite:///{path}")
    store = make()
    await store.open()
    await store.enqueue([job()])
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(_in_child(make, store))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await store.enqueue([job()])
    assert await store.count(Filter()) == 3
    await store.close()


def _in_child(make, inherited):  # pragma: no cover
    async def work():
        with pytest.raises(StoreError, match="was opened before this process was forked"):
            await inherited.enqueue([job()])
        store = make()
        await store.open()
        await store.enqueue([job()])
        assert await store.count(Filter()) == 2
        await store.close()

    try:
        asyncio._set_running_loop(None)
        asyncio.new_event_loop().run_until_complete(work())
    except BaseException as error:
        print(repr(error), flush=True)
        return 1
    return 0


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+apsw"])
async def test_a_fork_in_the_middle_of_writing(tmp_path, scheme):
    """A child must not inherit a lock that its own SQLite would believe to be held."""
    if scheme == "sqlite+apsw":
        pytest.importorskip("apsw")
    make = opener(f"{scheme}:///{tmp_path / 'jobs.db'}")
    store = make()
    await store.open()
    stop = False

    async def write_on():
        while not stop:
            await store.enqueue([job() for _ in range(50)])

    writing = asyncio.ensure_future(write_on())
    for round_ in range(5):
        await asyncio.sleep(0.004 * round_)
        child = os.fork()
        if child == 0:  # pragma: no cover
            os._exit(_enqueue_in_child(make))
        status = (await asyncio.to_thread(os.waitpid, child, 0))[1]
        assert os.waitstatus_to_exitcode(status) == 0
    stop = True
    await writing
    assert await store.count(Filter(queue="child")) == 5
    await store.close()


def _enqueue_in_child(make):  # pragma: no cover
    async def work():
        store = make()
        await store.open()
        await asyncio.wait_for(store.enqueue([job(queue="child")]), 10)
        await store.close()

    try:
        asyncio._set_running_loop(None)
        asyncio.new_event_loop().run_until_complete(work())
    except BaseException as error:
        print(repr(error), flush=True)
        return 1
    return 0


async def test_rows_written_by_hand_hide_no_others_and_never_run_altered(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        broken, odd, good = job(payload='"broken"'), job(), job()
        await store.enqueue([broken, odd, good])
        raw = sqlite3.connect(path)
        raw.execute(
            "update perdure_bodies set payload = cast(x'22ff22' as text) "
            "where number = (select number from perdure_jobs where id = ?)",
            (broken.id,),
        )
        raw.execute("update perdure_jobs set state = 'strange' where id = ?", (odd.id,))
        raw.commit()
        raw.close()
        found, _ = await store.find(Filter(), 10, None)
        marked = {record.id: record.reason for record in found}
        assert marked == {broken.id: "unreadable: payload", odd.id: "unreadable: state", good.id: None}
        claimed = (await store.exchange((), claim())).claimed
        assert [record.id for record in claimed] == [good.id]
        await store.inspect(100)
        aside = await store.get([broken.id, odd.id])
        assert [(record.state, record.reason) for record in aside] == [
            ("dead", "unreadable: payload"),
            ("dead", "unreadable: state"),
        ]
        kept = {row.id: json.loads(row.raw) for row in await store.unreadable()}
        assert kept[broken.id]["payload"] == {"base64": "Iv8i"}
        assert kept[odd.id]["state"] == "strange"


async def test_an_exchange_that_changes_nothing_writes_nothing(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job(delay=10**9)])
        before = path.stat().st_mtime_ns
        for _ in range(5):
            assert not (await store.exchange((), claim())).claimed
        await store.lapsed(10, 10**9)
        assert path.stat().st_mtime_ns == before


async def test_a_huge_backlog_of_other_lanes_is_merged_in_order(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        jobs = [job(task=f"t{number % 230}", priority=number % 7) for number in range(500)]
        await store.enqueue(jobs)
        claimed = (await store.exchange((), claim(300))).claimed
        best = sorted(jobs, key=lambda one: (-one.priority, one.id))[:300]
        assert [record.id for record in claimed] == [one.id for one in best]


async def test_jobs_too_large_for_one_text_are_claimed_in_parts(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await store._shared.database.alone(
            lambda c: c.raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2_000_000)  # instead of a billion bytes
        )
        for _ in range(30):
            await store.enqueue([job(payload=f'"{"x" * 200_000}"')])
        seen = set()
        while claimed := (await store.exchange((), claim(30))).claimed:
            seen |= {record.id for record in claimed}
        assert len(seen) == 30


@pytest.mark.parametrize("small", [True, False])
async def test_only_the_newest_are_kept_in_a_long_history_too(tmp_path, monkeypatch, small):
    if not small:
        monkeypatch.setattr("perdure.storage.sqlite.upkeep.upkeep.SMALL", 1)
    async with store_at(tmp_path / "jobs.db") as store:
        await store.enqueue([job(retention='{"last":2}') for _ in range(5)])
        ended = [record.id for record in (await store.exchange((), claim())).claimed]
        for record in await store.get(ended):
            await store.apply([decide(record, Succeeded())])
        assert await store.prune(100) == 3
        assert [record.hidden for record in await store.get(ended)] == [True] * 3 + [False] * 2
