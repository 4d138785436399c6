"""A store with very many queues is claimed from along lines, which have an index of their own."""

import sqlite3
from contextlib import closing

from perdure.storage.sqlite.claim import HELD_UP, LANES_TOLD
from perdure.testing.conformance.tools import claim, ids, job

from .helpers import store_at


def has_lines(path):
    with closing(sqlite3.connect(path)) as raw:
        return bool(raw.execute("SELECT 1 FROM sqlite_schema WHERE name = 'perdure_jobs_line'").fetchall())


async def test_only_a_store_with_many_lanes_has_the_index(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job(queue=f"q{number}") for number in range(LANES_TOLD)])
        await claim(store, 1)
        assert not has_lines(path)
        await store.enqueue([job(queue=f"other {number}") for number in range(4)])
        assert len(await claim(store, 1, queues=("q3", "q4"))) == 1
        assert not has_lines(path)
        await claim(store, 1)
        assert has_lines(path)


async def test_a_deep_paused_queue_is_not_walked_through(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        await store.enqueue([job(queue="paused", priority=9) for _ in range(HELD_UP + 1)])
        others = [job(queue=f"q{number}", priority=number % 5) for number in range(LANES_TOLD + 1)]
        await store.enqueue(others)
        await store.pause("paused", True)
        best = ids(sorted(others, key=lambda new: (-new.priority, new.id)))
        assert ids(await claim(store, 20)) == best[:20]
        assert not has_lines(tmp_path / "jobs.db")
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
