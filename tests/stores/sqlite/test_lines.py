"""A store with very many queues is claimed from along lines, which have an index of their own."""

import sqlite3
from contextlib import asynccontextmanager, closing

import pytest

from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Succeeded
from perdure.storage.contract import Claim, Want
from perdure.storage.sqlite.claiming.lanes import LANES_READ
from perdure.testing.conformance.tools import apply_report, claim, ids, job

from .helpers import store_at

pytestmark = pytest.mark.usefixtures("both_paths")


def has_lines(path):
    with closing(sqlite3.connect(path)) as raw:
        return bool(raw.execute("SELECT 1 FROM sqlite_schema WHERE name = 'perdure_jobs_line'").fetchall())


async def test_only_a_store_with_many_lanes_has_the_index(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job(queue=f"q{number}") for number in range(LANES_READ)])
        await claim(store, 1)
        assert not has_lines(path)
        await store.enqueue([job(queue=f"other {number}") for number in range(4)])
        assert len(await claim(store, 1, queues=("q3", "q4"))) == 1
        assert not has_lines(path)
        await claim(store, 1)
        assert has_lines(path)


async def test_a_deep_paused_queue_is_not_walked_through(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await store.enqueue([job(queue="paused", priority=9) for _ in range(1_500)])
        others = [job(queue=f"q{number}", priority=number % 5) for number in range(LANES_READ + 1)]
        await store.enqueue(others)
        await store.pause("paused", True)
        best = ids(sorted(others, key=lambda new: (-new.priority, new.id)))
        assert ids(await claim(store, 20)) == best[:20]
        await store.pause("paused", False)
        await claim(store, 1)
        await store.pause("paused", True)
        assert ids(await claim(store, 20)) == best[20:40]


async def test_jobs_in_lines_go_in_the_order_of_a_claim(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        jobs = [
            job(queue=f"q{n}", task=f"t{n % 150}", routing_key=("x", None)[n % 2], priority=n * 7 % 11)
            for n in range(400)
        ]
        await store.enqueue(jobs)
        best = ids(sorted(jobs, key=lambda new: (-new.priority, new.id)))
        assert ids(await claim(store, 30)) == best[:30]
        of_x = [new for new in jobs if new.routing_key == "x" and new.id not in best[:30]]
        of_x = ids(sorted(of_x, key=lambda new: (-new.priority, new.id)))
        assert ids(await claim(store, 30, routing="x", tasks=tuple(f"t{n}" for n in range(150)))) == of_x[:30]


@pytest.fixture
def store_with_paused_queues(tmp_path):
    """A store with 300 paused queues that hold the most urgent jobs, and one other queue."""

    @asynccontextmanager
    async def opened():
        async with store_at(tmp_path / "jobs.db") as store:
            await store.enqueue([job(queue=f"paused {number}", priority=9) for number in range(300)])
            await store.enqueue([job(queue="served") for _ in range(20)])
            for number in range(300):
                await store.pause(f"paused {number}", True)
            yield store

    return opened


async def test_a_claim_reads_the_jobs_of_paused_queues_once(store_with_paused_queues, tmp_path):
    def readable_in_lines():
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
            return raw.execute(
                "SELECT count(*) FROM perdure_jobs WHERE in_lane = 1 AND in_paused_queue IS NOT 1"
            ).fetchone()[0]

    async with store_with_paused_queues() as store:
        assert [record.queue for record in await claim(store, 2)] == ["served"] * 2
        assert readable_in_lines() == 18
        await store.enqueue([job(queue="paused 7", priority=9)])
        assert [record.queue for record in await claim(store, 2)] == ["served"] * 2
        assert readable_in_lines() == 16
        await store.pause("paused 7", False)
        assert [record.queue for record in await claim(store, 3)] == ["paused 7", "paused 7", "served"]


async def test_a_claim_that_meets_too_many_paused_jobs_leaves_the_others_to_the_next(
    store_with_paused_queues, monkeypatch
):
    monkeypatch.setattr("perdure.storage.sqlite.claiming.lanes.PAUSED_AT_ONCE", 100)
    async with store_with_paused_queues() as store:
        answers = []
        while not answers or not answers[-1].claimed:
            answers.append(await store.exchange((), Claim("w1", new_stamp(), (Want(2),))))
            assert len(answers) < 10
        assert len(answers) > 2
        assert all(answer.next_due == 0 for answer in answers[:-1])
        assert answers[-1].next_due is None


async def test_a_job_that_no_pause_holds_back_is_claimed_again(store_with_paused_queues, tmp_path):
    async with store_with_paused_queues() as store:
        await claim(store, 2)
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
            raw.execute("UPDATE perdure_queues SET paused = 0 WHERE name = 'paused 5'")
            raw.commit()
        await store.inspect(1_000)
        assert [record.queue for record in await claim(store, 2)] == ["paused 5", "served"]


@pytest.mark.parametrize("many", [False, True])
async def test_gates_of_paused_queues_are_closed(tmp_path, many):
    def limited(queue):
        return job(queue=queue, limits=f'[["{queue}",2,null,null]]')

    async with store_at(tmp_path / "jobs.db") as store:
        queues = [f"q{number}" for number in range(300 if many else 3)]
        await store.pause("q1", True)
        await store.enqueue([limited(queue) for queue in queues for _ in range(3)])
        await store.pause("q2", True)
        assert {record.queue for record in await claim(store, 2, limited=True, queues=("q0", "q1", "q2"))} == {"q0"}
        others = await claim(store, 1_000, limited=True)
        while more := await claim(store, 1_000, limited=True):
            others += more
        assert len(others) == 2 * (len(queues) - 3)
        assert not {record.queue for record in others} & {"q1", "q2"}
        await store.pause("q1", False)
        assert [record.queue for record in await claim(store, 9, limited=True)] == ["q1", "q1"]
        await store.pause("q2", False)
        held = await claim(store, 9, limited=True)
        assert [record.queue for record in held] == ["q2", "q2"]
        await store.pause("q2", True)
        await apply_report(store, held[0], Succeeded())
        assert await claim(store, 9, limited=True) == []
        await store.pause("q2", False)
        assert [record.queue for record in await claim(store, 9, limited=True)] == ["q2"]
