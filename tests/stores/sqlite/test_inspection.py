"""Rows that nobody can find, because the damaged value is the one that they are searched by: one inspection finds them."""

import sqlite3

import msgspec
import pytest

from perdure.storage.rules.limits import StoredLimit
from perdure.storage.sqlite.upkeep import inspection

from .helpers import after, claim, job, store_at

# what is done to the row of a job in this state, and whether it becomes a dead letter or comes back to its place
DAMAGES = {
    "a running job without the end of its lease": ("running", "leased_until = NULL", "dead"),
    "a ready job with an unknown state": ("ready", "state = 'strange'", "dead"),
    "a ready job in no lane": ("ready", "in_lane = NULL", "ready"),
    "a ready job that is outside the lanes": ("ready", "in_lane = NULL, index_state = 'nowhere'", "ready"),
    "a ready job that holds a lease": ("ready", "leased_until = 5, stamp = 5", "dead"),
    "a scheduled job that no index shows": ("scheduled", "index_state = NULL", "scheduled"),
    "a blocked job that no index shows": ("blocked", "index_state = NULL", "blocked"),
}


def change(path, values, id):
    raw = sqlite3.connect(path)
    raw.execute(f"UPDATE perdure_jobs SET {values} WHERE id = ?", (id,))
    raw.commit()
    raw.close()


async def fill(store, count):
    for _ in range(0, count, 500):
        await store.enqueue([job() for _ in range(500)])


@pytest.mark.parametrize("damage", DAMAGES)
async def test_one_inspection_finds_a_misplaced_row_behind_many(tmp_path, damage):
    state, values, becomes = DAMAGES[damage]
    async with store_at(tmp_path / "jobs.db") as store:
        await fill(store, 2_000)
        parent = job(queue="other", delay=10**9)
        bad = {
            "running": job(queue="mine"),
            "ready": job(queue="mine"),
            "scheduled": job(delay=10**9),
            "blocked": after(parent),
        }[state]
        await store.enqueue([parent, bad])
        if state == "running":
            assert (await store.exchange((), claim(1, queues=("mine",)))).claimed
        change(tmp_path / "jobs.db", values, bad.id)
        await store.inspect(10)
        (found,) = await store.get([bad.id])
        assert found.state == becomes
        if becomes == "dead":
            assert [row.id for row in await store.unreadable()] == [bad.id]
        if becomes == "ready":
            claimed = (await store.exchange((), claim(1, queues=("mine",)))).claimed
            assert [record.id for record in claimed] == [bad.id]
        assert await store.inspect(10) == 0


async def test_sound_rows_of_every_state_are_not_misplaced(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        parent = job(queue="other", delay=10**9)
        limits = msgspec.json.encode([StoredLimit("k", 5)]).decode()
        limited = [job(limits=limits), job(limits=limits, delay=10**9)]
        jobs = [parent, job(), job(delay=10**9), after(parent), job(queue="running"), *limited]
        await store.enqueue(jobs)
        assert (await store.exchange((), claim(1, queues=("running",)))).claimed
        swept = await store._database().read(lambda each: inspection.sweep(each, inspection.FIRST))
        assert swept == ([], [], inspection.FIRST)


async def test_a_sweep_goes_on_where_the_last_one_ended(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await fill(store, 1_000)
        late = job()
        await store.enqueue([late])
        change(tmp_path / "jobs.db", "in_lane = NULL", late.id)
        seen, at = [], inspection.FIRST
        for _ in range(6):
            swept = await store._database().read(lambda each, at=at: inspection.sweep(each, at, 200))
            seen.append(len(swept.misplaced))
            at = swept.last
        assert (seen, at) == ([0, 0, 0, 0, 0, 1], inspection.FIRST)


async def test_a_large_store_is_inspected_from_anywhere(tmp_path, monkeypatch):
    """Processes that end before they have read all rows do not all begin with the first."""
    monkeypatch.setattr(inspection, "FEW", 100)
    async with store_at(tmp_path / "jobs.db") as store:
        await fill(store, 1_000)
        starts = {await store._database().read(inspection.random_start) for _ in range(20)}
        assert len(starts) > 1
        assert all(0 <= start < 1_000 for start in starts)


async def test_a_body_without_a_job_is_kept_and_removed(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await fill(store, 500)
        raw = sqlite3.connect(tmp_path / "jobs.db")
        columns = "payload, policy, min_version, run_when, waits"
        for number in (-7, 10**12):
            raw.execute(
                f"INSERT INTO perdure_bodies (number, {columns}) SELECT ?, {columns} FROM perdure_bodies LIMIT 1",
                (number,),
            )
        raw.commit()
        assert await store.inspect(10) == 2
        assert [(row.where, row.id) for row in await store.unreadable()] == [("bodies", "-7"), ("bodies", str(10**12))]
        assert raw.execute("SELECT count(*) FROM perdure_bodies").fetchone() == (500,)
        raw.close()
