"""A claim costs the same with 30,000 queues as with three, on every store."""

import gc
from time import perf_counter

import pytest

from perdure.ids import new_stamp
from perdure.storage.contract import Claim, Want
from perdure.testing.conformance.tools import job

from ..conformance.stores import STORES

JOBS = 30_000
ROUNDS = 9
NAMED = ("queue-0", "queue-1", "queue-2")
WANTS = {
    "every queue": {},
    "every queue, known tasks": {"tasks": ("other", "task")},
    "named queues": {"queues": NAMED},
    "named queues, known tasks": {"queues": NAMED, "tasks": ("other", "task")},
    "nothing to be had": {"tasks": ("other",)},
    "suspects": {"alone": True},
    "under limits": {"limited": True},
}


@pytest.fixture(params=[name for name in STORES if name != "sqlite-in-memory"])
def kind(request):
    return request.param


async def _filled(kind, directory, queues):
    """A store with 30,000 ready jobs in so many queues."""
    directory.mkdir()
    store, _ = await STORES[kind](directory)
    jobs = [job(queue=f"queue-{number % queues}") for number in range(JOBS)]
    for begin in range(0, JOBS, store.chunk):
        await store.enqueue(jobs[begin : begin + store.chunk])
    return store


async def _seconds(store, want):
    began = perf_counter()
    claimed = await store.claim(Claim("w1", new_stamp(), (want,)))
    return perf_counter() - began, len(claimed)


async def test_a_claim_costs_the_same_however_many_queues_hold_jobs(kind, tmp_path):
    few, many = await _filled(kind, tmp_path / "few", 3), await _filled(kind, tmp_path / "many", JOBS)
    gc.collect()
    told = {}
    for name, asked in WANTS.items():
        with_few, with_many = [], []
        for _ in range(ROUNDS):
            seconds, _ = await _seconds(few, Want(2, **asked))
            with_few.append(seconds)
            seconds, _ = await _seconds(many, Want(2, **asked))
            with_many.append(seconds)
        told[name] = min(with_few), min(with_many)
    await few.close()
    await many.close()
    slower = {
        name: f"{1000 * least:.2f} ms with 3 queues, {1000 * most:.2f} ms with {JOBS}"
        for name, (least, most) in told.items()
        if most > 3 * least + 0.002
    }
    assert not slower
