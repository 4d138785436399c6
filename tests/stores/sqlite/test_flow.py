"""Edges and limits where the conformance cases do not reach: several processes, large numbers, files of an older version."""

import asyncio
import json
import random
from itertools import accumulate

import pytest

from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Stopped, Succeeded, decide
from perdure.storage.contract import Filter
from perdure.storage.memory.store import MemoryStorage
from perdure.testing import ManualClock

from .helpers import after, claim, finish, job, line, process, store_at


async def settle_all(store):
    while await store.resolve_edges(store.chunk):
        pass


async def work_off(store, *, limited=False, limit=500):
    """Claim and succeed until nothing is ready; gives the ids in the order of the claims."""
    ids, changes = [], []
    while True:
        answer = await store.exchange(changes, claim(limit, limited=limited))
        ids += [record.id for record in answer.claimed]
        changes = [decide(record, Succeeded()) for record in answer.claimed]
        if not changes and not answer.unresolved:
            return ids


# ---- edges -----------------------------------------------------------------------------------------
async def test_nobody_is_stranded_between_processes(tmp_path):
    """Children are enqueued in one process while their parents end in another."""
    path, rounds = tmp_path / "jobs.db", 100
    async with store_at(path) as store:
        parents = [job() for _ in range(rounds)]
        await store.enqueue(parents)
        held = {record.id: record for record in (await store.exchange((), claim(rounds))).claimed}
        other = process(
            path,
            """
            from perdure.core.record import Record
            async def main():
                async with store_at(path) as store:
                    say("ready")
                    for id in sys.stdin.readline().split():
                        (parent,) = await store.get([id])
                        await store.enqueue([after(parent, run_when="finished")])
            asyncio.run(main())
            """,
        )
        assert await line(other) == "ready"
        other.stdin.write(" ".join(held) + "\n")
        other.stdin.flush()
        for number, parent in enumerate(parents):
            await store.apply([decide(held[parent.id], Succeeded() if number % 2 else Cancelled())])
        await asyncio.to_thread(finish, other)
        await settle_all(store)
        assert await store.count(Filter(states=(State.READY,))) == rounds
        assert await store.count(Filter(states=(State.BLOCKED,))) == 0


async def test_wide_flows(tmp_path):
    """One job, then thousands, then one again."""
    width = 3_000
    async with store_at(tmp_path / "jobs.db", query="?journal=wal", durability="relaxed") as store:
        first = job()
        middle = [after(first) for _ in range(width)]
        last = after(*middle)
        await store.enqueue([first])
        for begin in range(0, width, store.chunk):
            await store.enqueue(middle[begin : begin + store.chunk])
        await store.enqueue([last])
        ran = await work_off(store)
        assert (ran[0], set(ran[1:-1]), ran[-1]) == (first.id, {one.id for one in middle}, last.id)
        assert len(ran) == width + 2


async def test_a_crash_between_two_steps_leaves_nobody_behind(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([parent := job()])
        children = [after(parent) for _ in range(20)]
        await store.enqueue(children)
        (held,) = (await store.exchange((), claim())).claimed
        store.chunk = 5
        answer = await store.exchange([decide(held, Succeeded())])
        assert answer.unresolved
        assert await store.resolve_edges(5) > 0
    async with store_at(path) as store:
        assert {record.state for record in await store.get([one.id for one in children])} == {"ready", "blocked"}
        answer = await store.exchange((), claim(0))
        assert not answer.unresolved
        assert {record.state for record in await store.get([one.id for one in children])} == {"ready"}


# ---- limits ----------------------------------------------------------------------------------------
async def test_limits_hold_between_processes(tmp_path):
    """Each process says from when to when it surely held how many; one clock counts for all processes."""
    path = tmp_path / "jobs.db"
    limits = [json.dumps([["all", 3], [f"tenant {number % 4}", 2]]) for number in range(60)]
    async with store_at(path) as store:
        await store.enqueue([job(limits=text) for text in limits])
        code = """
        async def main():
            async with store_at(path) as store:
                changes = []
                while True:
                    answer = await store.exchange(changes, claim(2, worker=str(os.getpid()), limited=True))
                    changes = [decide(record, Succeeded()) for record in answer.claimed]
                    if changes:
                        since = time.monotonic_ns()
                        await asyncio.sleep(0.002)
                        say(len(changes), since, time.monotonic_ns())
                    elif not await store.count(WAITING):
                        break
        from perdure.storage.contract import Filter
        WAITING = Filter(states=("ready", "running"))
        asyncio.run(main())
        """
        others = [process(path, code) for _ in range(3)]
        moments = []
        for other in others:
            for held, since, until in (map(int, said.split()) for said in finish(other).splitlines()):
                moments += [(since, held), (until, -held)]
        running = list(accumulate(change for _, change in sorted(moments)))
        assert 1 <= max(running) <= 3
        assert sum(change for _, change in moments if change > 0) == len(limits)
        assert await store.count(Filter(states=(State.SUCCEEDED,))) == len(limits)


@pytest.mark.parametrize("seed", range(3))
async def test_the_order_holds_over_more_gates_than_a_claim_looks_at(seed):
    """300 gates of which most are full, against the memory store."""
    draw = random.Random(seed)
    clock = ManualClock()
    async with store_at(":memory:", clock=clock) as store:
        memory = MemoryStorage(clock)
        jobs = []
        for number in range(600):
            limits = [["all", 40], [f"tenant {draw.randrange(150)}", 1], [f"kind {number % 2}", 30, 200, 50_000_000]]
            fields = {"limits": json.dumps(limits), "priority": draw.randrange(3), "queue": draw.choice("abc")}
            jobs.append(job(id=f"{draw.randrange(10**9):09d}{number}", **fields))
        stores = (memory, store)
        for each in stores:
            await each.enqueue(jobs[:500])
            await each.enqueue(jobs[500:])
        changes = []
        for _ in range(25):
            want = claim(draw.choice((1, 5, 60)), limited=True, queues=draw.choice((None, ("a", "c"))))
            answers = [await each.exchange(changes, want) for each in stores]
            claimed = [[record.id for record in answer.claimed] for answer in answers]
            assert claimed[1] == claimed[0]
            assert answers[1].next_due == answers[0].next_due
            held = [record for record in await memory.get([one.id for one in jobs]) if record.stamp is not None]
            changes = [decide(record, Succeeded()) for record in held if draw.random() < 0.4]
            clock.advance(draw.choice((0, 1, 30)))


@pytest.mark.parametrize("plain", [True, False], ids=["a plain success", "another end"])
async def test_room_under_a_limit_wakes_who_waits_for_it(tmp_path, plain):
    async with store_at(tmp_path / "jobs.db") as store:
        await store.enqueue([job(limits='[["k",1]]', queue="mail"), job(limits='[["k",1]]', queue="mail")])
        (held,) = (await store.exchange((), claim(limited=True))).claimed
        mail, other = asyncio.Event(), asyncio.Event()
        store.listen("ready", mail.set, frozenset({"mail"}))
        store.listen("ready", other.set, frozenset({"other"}))
        await store.apply([decide(held, Succeeded() if plain else Cancelled())])
        if not plain:
            assert not mail.is_set()  # its code may still run
            (record,) = await store.get([held.id])
            await store.apply([decide(record, Stopped())])
        await asyncio.wait_for(mail.wait(), 20)
        assert not other.is_set()
