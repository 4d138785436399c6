"""Jobs under limits: several claimers at once, gates in great numbers, and indexes that have lost or kept too much."""

import json

import pytest

from perdure import StoreError
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Claim, Filter, Want
from perdure.testing import ManualClock

from .helpers import client, jobs, keys, opened
from .test_processes import at_once

LIMITED = Want(20, limited=True)


def limited(count, *limits):
    return jobs(count, limits=json.dumps(limits))


def under(key, most):
    return [key, most, None, None]


def claim(want=LIMITED, worker="w1"):
    return Claim(worker, new_stamp(), (want,))


async def ended(store, held):
    """End what is held and claim anew."""
    answer = await store.exchange([decide(record, Succeeded()) for record in held], claim())
    return list(answer.claimed)


async def test_a_limit_holds_for_all_who_claim(url):
    """Two keys, shared by gates; each side sees at most what the limits allow, and all jobs run."""
    async with opened(url) as store:
        for tenant in range(4):
            await store.enqueue(limited(15, under("all", 5), under(f"t{tenant}", 2)))

        async def works(own, number):
            seen, done = 0, 0
            while await own.count(Filter(states=(State.READY,))):
                held = await own.claim(claim(Want(3, limited=True), f"w{number}"))
                seen = max(seen, await own.count(Filter(states=(State.RUNNING,))))
                done += len(held)
                await own.apply([decide(record, Succeeded()) for record in held])
            return seen, done

        sides = await at_once(url, works)
        assert 1 < max(seen for seen, _ in sides) <= 5
        assert sum(done for _, done in sides) == 60


async def test_thousands_of_gates_behind_one_key(url):
    """Whoever cannot start is looked at in turns: all run in the end."""
    async with opened(url) as store:
        held = await behind_one_key(store, 1500)
        done = 0
        while held:
            done += len(held)
            held = await ended(store, held)
            assert len(held) == min(10, 1500 - done), "no room is left unused"
        assert done == 1500
        with client(url) as raw:
            assert raw.zcard(keys(url)["limits"]) == raw.hlen(keys(url)["gates"]) == 0, "nothing is left of them"


async def test_a_claim_with_all_gates_closed_looks_at_none(own):
    """On a server that nobody else uses, because it counts for all who do."""
    url = own().fresh()
    async with opened(url) as store:
        await behind_one_key(store, 1500)
        while (await store.exchange((), claim())).next_due == 0:  # until all gates are known to be closed
            pass
        with client(url) as raw:
            before = raw.info("commandstats")["cmdstat_zrangebylex"]["calls"]
            for _ in range(5):
                assert await store.claim(claim()) == []
            looks = raw.info("commandstats")["cmdstat_zrangebylex"]["calls"] - before
        assert looks < 5 * 10


async def behind_one_key(store, gates):
    """As many jobs, each at a gate of its own; those that may run are held."""
    for start in range(0, gates, 500):
        await store.enqueue([limited(1, under("all", 10), under(f"t{n}", 1))[0] for n in range(start, start + 500)])
    held = await ended(store, [])
    assert len(held) == 10
    return held


async def test_gates_that_one_key_lets_go_and_another_stops(url):
    """Room under a shared key goes to the one gate behind a hundred that are full for a reason of their own."""
    async with opened(url) as store:
        await store.enqueue(limited(1, under("one", 1)) + limited(1, under("all", 1)))
        long, first = await store.claim(claim())
        for number in range(100):
            await store.enqueue(limited(1, under("all", 1), under("one", 1), under(f"t{number}", 1)))
        assert await store.claim(claim()) == []
        await store.enqueue([last := limited(1, under("all", 1), under("two", 1))[0]])
        assert await store.claim(claim()) == []
        held = await ended(store, [first])
        assert [record.id for record in held] == [last.id]
        held = await ended(store, [long, *held])
        for _ in range(99):
            assert len(held) == 1, "then the others, one by one"
            held = await ended(store, held)
        assert await ended(store, held) == []


async def test_what_lost_its_place_or_kept_a_slot_is_mended(url):
    async with opened(url) as store:
        await store.enqueue(limited(3, under("k", 1)))
        (held,) = await store.claim(claim())
        assert await store.claim(claim()) == []
        with client(url) as raw:
            raw.hincrby(keys(url)["gates"], "sk", 1)  # a slot of nobody
            await store.apply([decide(held, Succeeded())])
            assert await store.claim(claim()) == [], "it counts, for all that a claim knows"
            await store.prune(100)
            (second,) = await store.claim(claim())
            raw.delete(keys(url)["limits"], keys(url)["gates"])
            await store.apply([decide(second, Succeeded())])
        await store.prune(100)
        assert len(await store.claim(claim())) == 1
        assert await store.claim(claim()) == [], "and under its limit"


async def test_holds_are_counted_anew(url):
    """Whatever was written about them: too few, too many, none at all."""
    async with opened(url, clock=(clock := ManualClock())) as store:
        await store.enqueue(limited(9, under("k", 3), under("other", 9)))
        (first,) = await store.claim(claim(Want(1, limited=True)))
        second, third = await store.claim(claim())
        slots = {b"sk": b"3", b"sother": b"3"}
        for untrue in ({"sk": 1}, {"sk": 7, "snobody": 4}, {"sother": 0}, {}):
            with client(url) as raw:
                raw.hdel(keys(url)["gates"], "sk", *([] if untrue else ["sother"]))
                raw.zadd(keys(url)["limits"], {b"sk\x00" + bytes(16): 0})  # what nobody knows is removed
                if untrue:
                    raw.hset(keys(url)["gates"], mapping=untrue)
            clock.advance(1)
            await store.prune(100)
            assert slots_of(url) == slots
            assert await store.claim(claim()) == []
        await store.apply([decide(record, Succeeded()) for record in (first, second)])
        assert len(await store.claim(claim())) == 2
        await store.apply([decide(third, Succeeded())])
        assert slots_of(url) == {b"sk": b"2", b"sother": b"2"}


async def test_many_holds_are_counted_seldom(url):
    async with opened(url, clock=(clock := ManualClock())) as store:
        await store.enqueue(limited(500, under("k", 500)))
        assert len(await store.claim(claim(Want(500, limited=True)))) == 500
        await store.prune(100)
        for seconds, said in ((1, b"501"), (2, b"500")):
            with client(url) as raw:
                raw.hset(keys(url)["gates"], "sk", 501)
            clock.advance(seconds)
            await store.prune(100)
            assert slots_of(url) == {b"sk": said}


async def test_a_key_that_is_named_twice_counts_once(url):
    async with opened(url) as store:
        await store.enqueue(limited(3, under("k", 2), under("k", 3)))
        held = await store.claim(claim())
        assert len(held) == 2
        assert slots_of(url) == {b"sk": b"2"}
        assert await store.claim(claim()) == []
        assert len(await ended(store, held)) == 1
        with client(url) as raw:
            assert raw.zcard(keys(url)["limits"]) == 0


def slots_of(url):
    with client(url) as raw:
        return {field: number for field, number in raw.hgetall(keys(url)["gates"]).items() if field[:1] == b"s"}


async def test_starts_are_forgotten(url):
    async with opened(url, clock=(clock := ManualClock())) as store:
        await store.enqueue(jobs(3, limits=json.dumps([["r", None, 2, 10_000_000]])))
        assert len(await store.claim(claim())) == 2
        answer = await store.exchange((), claim())
        assert (list(answer.claimed), answer.next_due) == ([], 10_000_000)
        clock.advance(10)
        assert len(await store.claim(claim())) == 1
        clock.advance(90_000)
        await store.prune(100)
        with client(url) as raw:
            assert raw.zcard(keys(url)["limits"]) == 0
        assert slots_of(url) == {b"sr": b"3"}, "only those who hold are left"


async def test_limited_jobs_and_a_full_memory(own):
    """New ones are refused as a whole; those on record are claimed and ended."""
    server = own()
    async with opened(server.fresh()) as store:
        await store.enqueue(limited(20, under("a", 2)))
        with client(server.url) as raw:
            raw.config_set("maxmemory", "1mb")
            with pytest.raises(StoreError):
                await store.enqueue(limited(1, under("b", 2)))
            held, done = await ended(store, []), 0
            while held:
                done += len(held)
                held = await ended(store, held)
            raw.config_set("maxmemory", "0")
        assert done == 20
