"""Successes of jobs that were claimed together."""

import sqlite3
from contextlib import closing

import pytest

from perdure.core.job import State
from perdure.core.lifecycle import success_of
from perdure.storage.contract import ACCEPTED, Refusal

from .helpers import claim, job, store_at

pytestmark = pytest.mark.usefixtures("both_paths")

STARTED = 1_700_000_000_000_000


async def held_by(store, jobs):
    await store.enqueue(jobs)
    return (await store.exchange((), claim(len(jobs)))).claimed


def ends(records):
    return [success_of(record, None, STARTED + 1_000 * place) for place, record in enumerate(records)]


async def states(store, records):
    return [found and found.state for found in await store.get([record.id for record in records])]


async def test_neighbours_that_still_run_go_on(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        held = await held_by(store, [job() for _ in range(30)])
        over = held[20:24] + held[3:18:2]
        assert await store.apply(ends(over)) == [ACCEPTED] * len(over)
        found = await store.get([record.id for record in over])
        assert [record.started_at for record in found] == [STARTED + 1_000 * place for place in range(len(over))]
        others = [record for record in held if record not in over]
        assert await states(store, others) == [State.RUNNING] * len(others)
        assert await store.apply(ends(others)) == [ACCEPTED] * len(others)


async def test_rows_that_have_moved_meanwhile_are_not_taken_for_each_other(tmp_path):
    """A file that was put together anew may number rows anew: where one job was, there is another of the same claim."""
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        held = await held_by(store, [job() for _ in range(20)])
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            for table in ("perdure_jobs", "perdure_bodies"):
                raw.execute(f"update {table} set number = number + 1000")
                raw.execute(f"update {table} set number = number - 1003")
        over, others = held[:4], held[4:]
        assert await store.apply(ends(over)) == [ACCEPTED] * 4
        assert await states(store, held) == [State.SUCCEEDED] * 4 + [State.RUNNING] * len(others)


async def test_one_word_of_a_lost_hold_is_refused_alone(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        held = await held_by(store, [job() for _ in range(6)])
        assert await store.apply(ends(held[2:3])) == [ACCEPTED]
        verdicts = await store.apply(ends(held))
        assert [verdict.accepted for verdict in verdicts] == [True] * 6  # one of them is the same word again
        later = await held_by(store, [job() for _ in range(3)])
        later[1].stamp += 1
        verdicts = await store.apply(ends(later))
        assert [verdict.refusal for verdict in verdicts] == [None, Refusal.TAKEN, None]


async def test_results_stay_with_their_jobs(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        held = await held_by(store, [job() for _ in range(6)])
        results = ['"ä€𝄞"', None, '""', "[1,2]", '"\\u0000"', "null"]
        told = [success_of(record, result, STARTED) for record, result in zip(held, results, strict=True)]
        told = [told[5], *told[:5]]
        assert await store.apply(told) == [ACCEPTED] * 6
        assert [found.result for found in await store.get([record.id for record in held])] == results
