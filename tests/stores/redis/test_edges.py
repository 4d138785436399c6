"""Jobs that wait for jobs: races between connections, great numbers, and what an audit finds."""

import asyncio
import json

from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Died, Succeeded, decide
from perdure.storage.contract import Filter
from perdure.testing import ManualClock
from perdure.testing.conformance.tools import FORGET, job

from .helpers import claim, client, jobs, keys, opened


def after(*parents, **fields):
    return job(after=json.dumps([parent.id for parent in parents]), waits=len(parents), **fields)


async def settled(store):
    looked = 0
    while some := await store.resolve_edges(500):
        looked += some
    return looked


async def states(store, children):
    return {record.state for record in await store.get([child.id for child in children])}


async def test_no_child_is_stranded(url):
    """From two connections: a child is enqueued while its parent ends, a hundred times."""
    async with opened(url) as store, opened(url) as other:
        await store.enqueue(jobs(100))
        parents = await store.claim(claim(100))
        children = [after(parent, run_when="finished") for parent in parents]
        words = (Succeeded(), Died("no"), Cancelled())

        async def end():
            for number, parent in enumerate(parents):
                await other.apply([decide(parent, words[number % 3])])

        async def follow():
            for child in children:
                await store.enqueue([child])

        await asyncio.gather(end(), follow())
        assert await states(store, children) == {State.READY}


async def test_a_fan_out_and_a_fan_in(url):
    """One job, three thousand after it, and one after all of them."""
    async with opened(url) as store:
        first = job()
        await store.enqueue([first])
        middle = [after(first, task="middle") for _ in range(3000)]
        for start in range(0, len(middle), store.chunk):
            await store.enqueue(middle[start : start + store.chunk])
        last = after(*middle, task="last")
        await store.enqueue([last])
        (record,) = await store.claim(claim(9))
        answer = await store.exchange([decide(record, Succeeded())])
        assert answer.unresolved
        await settled(store)
        done = 0
        while held := await store.claim(claim(500)):
            done += len(held)
            await store.apply([decide(each, Succeeded()) for each in held])
            await settled(store)
        assert done == 3001
        assert await store.count(Filter(states=(State.SUCCEEDED,))) == 3002
        with client(url) as raw:
            assert raw.zcard(keys(url)["unresolved"]) == 0


async def test_parents_that_are_needed_do_not_hold_up_a_prune(url):
    async with opened(url, clock=(clock := ManualClock())) as store:
        parents, others = jobs(600, retention=FORGET), jobs(50, retention=FORGET)
        await store.enqueue([*parents, *others])
        held = await store.claim(claim(650))
        child = after(*parents)
        await store.enqueue([child])
        await store.apply([decide(record, Succeeded()) for record in held])
        await settled(store)
        clock.advance(3600)
        assert await store.prune(100) == 50, "the parents stay, whatever their number"
        (record,) = await store.claim(claim(9))
        await store.apply([decide(record, Succeeded())])
        clock.advance(120)
        assert await store.prune(1000) == 600, "until the one who waited has ended"
        with client(url) as raw:
            assert raw.zcard(keys(url)["edges"]) == 0


async def test_an_end_that_nobody_followed_is_found(url):
    """As an older Perdure that still runs would leave it."""
    async with opened(url) as store:
        parent = job()
        child = after(parent)
        await store.enqueue([parent, child])
        (record,) = await store.claim(claim(9))
        with client(url) as raw:
            kept = raw.zrange(keys(url)["edges"], 0, -1)
            raw.delete(keys(url)["edges"])
            await store.apply([decide(record, Succeeded())])
            raw.zadd(keys(url)["edges"], dict.fromkeys(kept, 0))
        assert await states(store, [child]) == {State.BLOCKED}
        await store.prune(100)
        await settled(store)
        assert await states(store, [child]) == {State.READY}
