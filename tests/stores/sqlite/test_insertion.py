"""An enqueue in the caller's own transaction does what an enqueue does."""

import contextlib
import sqlite3

import msgspec
import pytest

from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import QueueSettings
from perdure.storage.rules.fairness import SHARE
from perdure.testing import ManualClock

from .helpers import after, claim, job, store_at

STRANGE = "nul \x00, quote ', percent %, mark ?, Grüße 🎈, \x1f"


def run(raw, insertion):
    for statement, text in insertion.inserts:
        assert statement.count("?") == 1
        assert "%" not in statement
        assert statement.lstrip().upper().startswith("INSERT")
        raw.execute(statement, (text,))
    statement, text = insertion.readback
    assert statement.count("?") == 1
    assert "%" not in statement
    return [id for _, id in raw.execute(statement, (text,)).fetchall()]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"delay": 5_000_000},
        {"at": 1},
        {"waits": 1},
        {"expires": 9, "timeout": None, "max_attempts": None, "priority": -3},
        {"key": STRANGE, "tenant": STRANGE, "routing_key": STRANGE, "unique_key": STRANGE, "unique_scope": "active"},
        {"payload": '{"a":"\\u0000 ? %"}', "tags": '["x"]', "meta": '{"y":"%?"}', "limits": '[["k",1]]'},
        {"unique_key": "k", "unique_scope": "waiting"},
        {"unique_key": "k", "unique_scope": "any", "chain_id": "c", "run_when": "finished"},
        {"unique_key": "k", "unique_scope": "window", "unique_window": 60},
    ],
)
async def test_the_same_row_as_an_enqueue(tmp_path, clock, fields):
    ours, theirs = job(**fields), None
    async with store_at(tmp_path / "ours.db", clock=clock) as store:
        await store.enqueue([ours])
        (expected,) = await store.get([ours.id])
    async with store_at(tmp_path / "theirs.db", clock=clock) as store:
        raw = sqlite3.connect(tmp_path / "theirs.db")
        assert run(raw, store.caller_statements([ours])) == [ours.id]
        raw.commit()
        raw.close()
        (theirs,) = await store.get([ours.id])
    assert msgspec.structs.asdict(theirs) == msgspec.structs.asdict(expected)


@pytest.mark.parametrize("scope", ["waiting", "active", "any", "window"])
async def test_keys_are_unique_there_too(tmp_path, clock, scope):
    unique = {"unique_key": "k", "unique_scope": scope, "unique_window": 60_000_000}
    first, second, third = (job(**unique) for _ in range(3))
    async with store_at(tmp_path / "jobs.db", clock=clock) as store:
        raw = sqlite3.connect(tmp_path / "jobs.db")
        assert run(raw, store.caller_statements([first, second])) == [first.id, first.id]
        raw.commit()
        assert run(raw, store.caller_statements([third, first])) == [first.id, first.id]
        raw.commit()
        (placed,) = await store.enqueue([third])
        assert (placed.id, placed.duplicate) == (first.id, True)
        if scope == "window":
            clock.advance(61)
            assert run(raw, store.caller_statements([third])) == [third.id]
            raw.commit()
        raw.close()
        assert [record is not None for record in await store.get([first.id, second.id, third.id])] == [
            True,
            False,
            scope == "window",
        ]


async def test_a_job_of_a_kept_key_is_not_made_again(tmp_path, clock):
    once = job(unique_key="k", unique_scope="any")
    async with store_at(tmp_path / "jobs.db", clock=clock) as store:
        await store.enqueue([once])
        raw = sqlite3.connect(tmp_path / "jobs.db")
        raw.execute("delete from perdure_jobs")
        clock.advance(1)
        assert run(raw, store.caller_statements([once])) == [once.id]
        raw.commit()
        raw.close()
        assert await store.get([once.id]) == [None]


async def states(store, jobs):
    return [None if record is None else record.state for record in await store.get([one.id for one in jobs])]


@contextlib.asynccontextmanager
async def both(tmp_path, clock):
    """A store, and a connection of somebody else's to its file."""
    async with store_at(tmp_path / "jobs.db", clock=clock) as store:
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
            yield store, raw


async def test_jobs_that_wait_for_jobs(tmp_path, clock):
    async with both(tmp_path, clock) as (store, raw):
        await store.enqueue([over := job(), running := job(queue="never")])
        (held,) = (await store.exchange((), claim(queues=("default",)))).claimed
        await store.apply([decide(held, Succeeded())])
        children = [after(over), after(over, running), after(job()), after(over, run_when="finished", delay=10**9)]
        run(raw, store.caller_statements(children))
        raw.commit()
        assert await states(store, children) == ["blocked"] * 4
        await store.exchange((), claim(queues=("never",), limit=0))
        assert await states(store, children) == ["ready", "blocked", "cancelled", "scheduled"]
        assert await store.followers([running.id]) == [[children[1].id]]
        (held,) = (await store.exchange((), claim(queues=("never",)))).claimed
        await store.apply([decide(held, Succeeded())])
        assert await states(store, children[1:2]) == ["ready"]
        assert await store.resolve_edges(9) == 0


async def test_a_flow_in_one_list_some_of_it_known_already(tmp_path, clock):
    async with both(tmp_path, clock) as (store, raw):
        await store.enqueue([owner := job(unique_key="k", unique_scope="active")])
        first, again, kept, kept_again = [
            job(unique_key=key, unique_scope=scope)
            for key, scope in zip("kkww", ["active"] * 2 + ["any"] * 2, strict=True)
        ]
        last = after(first, again, kept, kept_again)
        placed = run(raw, store.caller_statements([first, again, kept, kept_again, last]))
        assert placed == [owner.id, owner.id, kept.id, kept.id, last.id]
        raw.commit()
        for _ in range(2):
            held = (await store.exchange((), claim())).claimed
            await store.apply([decide(record, Succeeded()) for record in held])
        assert {record.id for record in held} == {last.id}
        # said again, it is there
        assert run(raw, store.caller_statements([last])) == [last.id]
        raw.commit()
        assert await store.followers([owner.id, kept.id]) == [[], []]


async def test_a_parent_is_not_pruned_before_it_is_looked_at(tmp_path, clock):
    async with both(tmp_path, clock) as (store, raw):
        await store.enqueue([parent := job(retention='"delete"')])
        (held,) = (await store.exchange((), claim())).claimed
        await store.apply([decide(held, Succeeded("1"))])
        run(raw, store.caller_statements([child := after(parent)]))
        raw.commit()
        clock.advance(10**6)
        assert await store.prune(9) == 0
        assert await store.resolve_edges(9) > 0
        assert await states(store, [child]) == ["ready"]


async def test_jobs_under_limits(tmp_path, clock):
    async with both(tmp_path, clock) as (store, raw):
        jobs = [job(limits='[["k",1]]'), job(limits='[["k",1]]', priority=9)]
        run(raw, store.caller_statements(jobs))
        raw.commit()
        assert [record.parked for record in await store.get([one.id for one in jobs])] == [True, True]
        claimed = (await store.exchange((), claim(limited=True))).claimed
        assert [record.id for record in claimed] == [jobs[1].id]


async def test_jobs_of_a_fair_queue(tmp_path, clock):
    async with both(tmp_path, clock) as (store, raw):
        await store.configure(QueueSettings("q", fair=True))
        await store.enqueue([job(queue="q", tenant="a") for _ in range(5)])
        jobs = [job(queue="q", tenant="b"), job(queue="q", tenant="b", delay=10**9), job(queue="other"), after(job())]
        run(raw, store.caller_statements(jobs))
        run(raw, store.caller_statements(jobs))
        raw.commit()
        assert await states(store, jobs) == ["blocked", "blocked", "ready", "blocked"]
        claimed = (await store.exchange((), claim(2, queues=("q",)))).claimed
        assert [record.tenant for record in claimed] == ["a", "b"]
        assert await states(store, jobs) == ["running", "scheduled", "ready", "cancelled"]
        first, second, plain, _ = await store.get([one.id for one in jobs])
        assert second.rank - first.rank == SHARE  # each pays once
        assert plain.rank == plain.run_at


async def test_what_is_rolled_back_was_never_there(tmp_path, clock):
    async with both(tmp_path, clock) as (store, raw):
        await store.configure(QueueSettings("q", fair=True))
        await store.enqueue([parent := job()])
        jobs = [after(parent), job(limits='[["k",1]]'), job(queue="q")]
        run(raw, store.caller_statements(jobs))
        raw.rollback()
        assert await states(store, jobs) == [None] * 3
        assert (await store.resolve_edges(9), await store.followers([parent.id])) == (0, [[]])
        assert raw.execute("select count(*) from perdure_unresolved").fetchone() == (0,)
