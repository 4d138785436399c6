"""A claim costs the same with 30,000 queues as with three, and under limits or beside paused queues it does not grow with
their number, on every store."""

import gc
from math import inf
from time import perf_counter

import pytest

from benchmarks.queues.shapes import SERVED, SHAPES
from perdure.core.ids import new_stamp
from perdure.storage.contract import Claim, Want
from perdure.testing.conformance.tools import job
from tests.support.addresses import OF_EACH_KIND

from .conformance.stores import STORES

JOBS = 30_000
ROUNDS = 9
TRIES = 4
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


async def _slower(few, many, want, jobs=None):
    """The shortest of many claims with few queues and with many, if the second is much longer.

    What another program takes away from one claim it does not take from all. So a difference must be seen many times."""
    least = most = inf
    for _ in range(TRIES):
        for _ in range(ROUNDS):
            seconds, got = await _seconds(few, want)
            least = min(least, seconds)
            seconds, got_of_many = await _seconds(many, want)
            most = min(most, seconds)
            assert jobs is None or got == got_of_many == jobs, "there were jobs to be had"
        if most <= 3 * least + 0.002:
            return None
    return f"{1000 * least:.2f} ms with few queues, {1000 * most:.2f} ms with many"


async def test_a_claim_costs_the_same_however_many_queues_hold_jobs(kind, tmp_path):
    few, many = await _filled(kind, tmp_path / "few", 3), await _filled(kind, tmp_path / "many", JOBS)
    gc.collect()
    slower = {name: await _slower(few, many, Want(2, **asked)) for name, asked in WANTS.items()}
    await few.close()
    await many.close()
    assert not any(slower.values()), slower


GROWN = 150, 900  # queues: more than any store looks at together, and six times as many
UNBOUNDED = {
    # A key may stand in several limits, and the index of held jobs has the limits, not the keys. So a claim counts all held
    # jobs with limits, and checks every used-up limit. A table of held jobs by key would make both independent of the number
    # of keys, and cost every limited job two more rows to write, in triggers that must survive limits written by hand.
    ("sqlite", "used-up"): "counts the jobs that run under each key",
    ("mongo", "paused"): "reads the names of all paused queues",
    ("mongo", "paused-limited"): "reads the names of all paused queues",
}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "ready"])
@pytest.mark.parametrize("kind", ["sqlite", *(kind for kind in OF_EACH_KIND if kind != "postgres")])
async def test_a_claim_does_not_grow_with_the_number_of_queues(kind, shape, tmp_path):
    """Judged by time. On PostgreSQL the pages that a claim reads are counted: tests/stores/postgres/test_many_queues.py."""
    if (kind, shape) in UNBOUNDED:
        pytest.skip(f"{kind}: {UNBOUNDED[kind, shape]}")
    _, fill, limited = SHAPES[shape]
    named = ("queue-0", "queue-1", "queue-2") if shape in ("limited", "rated") else SERVED
    stores = []
    for queues in GROWN:
        (tmp_path / str(queues)).mkdir()
        store, _ = await STORES[kind](tmp_path / str(queues))
        await fill(store, queues, GROWN[1])
        stores.append(store)
    gc.collect()
    slower = {}
    for name, want in {
        "every queue": Want(2, limited=limited),
        "three named": Want(2, limited=limited, queues=named),
    }.items():
        for store in stores:
            await _seconds(store, want)  # which may leave something for the next claim to put in order
        slower[name] = await _slower(*stores, want, jobs=2)
    for store in stores:
        await store.close()
    assert not any(slower.values()), slower
