"""An enqueue in the caller's own transaction does what an enqueue does."""

import sqlite3

import msgspec
import pytest

from holdfast.testing import ManualClock

from .helpers import job, store_at

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
        assert run(raw, store.insertion([ours])) == [ours.id]
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
        assert run(raw, store.insertion([first, second])) == [first.id, first.id]
        raw.commit()
        assert run(raw, store.insertion([third, first])) == [first.id, first.id]
        raw.commit()
        (placed,) = await store.enqueue([third])
        assert (placed.id, placed.duplicate) == (first.id, True)
        if scope == "window":
            clock.advance(61)
            assert run(raw, store.insertion([third])) == [third.id]
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
        raw.execute("delete from holdfast_jobs")
        clock.advance(1)
        assert run(raw, store.insertion([once])) == [once.id]
        raw.commit()
        raw.close()
        assert await store.get([once.id]) == [None]
