"""The fast paths write and return the same as the general path."""

import json
from contextlib import contextmanager

import pytest

from perdure.core.ids import new_ids
from perdure.core.job import State
from perdure.core.lifecycle import HandedBack, Snoozed, Succeeded, decide
from perdure.core.record import UniformJobs, unreadable_fields
from perdure.storage.contract import Claim, Want
from perdure.storage.rules import fast_path
from perdure.testing import ManualClock
from perdure.testing.conformance.tools import job

from .helpers import client, keys, opened

PLAIN, LIMITED = Want(60), Want(5, limited=True)
BOTH = (Want(2, tasks=("nothing",)), Want(1), Want(60, limited=True))


@contextmanager
def without_fast_paths():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_path, "enabled", lambda: False)
        yield


def content(url):
    """Everything on record under the prefix of a store, by key."""
    found = {}
    with client(url) as raw:
        for name, key in keys(url).by_name.items():
            match raw.type(key):
                case b"hash":
                    found[name] = raw.hgetall(key)
                case b"zset":
                    found[name] = raw.zrange(key, 0, -1, withscores=True)
                case b"set":
                    found[name] = raw.smembers(key)
    found["meta"].pop(b"given", None)  # at most a second behind
    return found


def succeeded(record, result=None, started_at=None):
    return decide(record, Succeeded(result, started_at))


def ends_of(claimed, stamp):
    """Some with results, some with starts."""
    return [
        succeeded(record, '"x"' if number % 3 == 0 else None, 5_000_000 + number if stamp % 2 else None)
        for number, record in enumerate(claimed)
    ]


async def lone(store, ids):
    """One job after the other."""
    for number, id in enumerate(ids):
        await store.enqueue([job(id=id)])
        (record,) = (await store.exchange([], Claim("w", 7 + number, (PLAIN,)))).claimed
        yield [record]
        yield await store.exchange(
            [succeeded(record, None if number % 2 else '"done"')], Claim("w", 99, (PLAIN, LIMITED))
        )


async def many(store, ids):
    """Lists of two kinds, more than a claim takes; ends with and without results, told with the next claim."""
    await store.enqueue(UniformJobs(job(), ids[:100], [f"[{number}]" for number in range(100)]))
    await store.enqueue([job(id=id, payload='["' + "ü" * 300 + '"]', priority=1) for id in ids[100:120]])
    await store.enqueue([job(id=id, max_attempts=192) for id in ids[120:130]])
    ends = []
    for stamp in range(1, 6):
        answer = await store.exchange(ends, Claim("w", stamp, (PLAIN,)))
        yield answer
        ends = ends_of(answer.claimed, stamp)
    assert not ends


async def repeated(store, ids):
    """What was said before, and what another has said, beside what is new."""
    await store.enqueue([job(id=id) for id in ids[:9]])
    yield await store.enqueue([job(id=id) for id in ids[5:12]])
    yield await store.enqueue([job(id=ids[13]), job(id=ids[13])])
    first = (await store.exchange([], Claim("w", 1, (Want(4),)))).claimed
    yield first
    ends = [succeeded(record) for record in first]
    yield await store.exchange(ends[:2])
    yield await store.exchange(ends, Claim("w", 2, (Want(2),)))


async def mixed(store, ids):
    """Other ends and other jobs beside ordinary ones, and jobs that come back."""
    await store.enqueue([job(id=id) for id in ids[:6]])
    await store.enqueue([job(id=ids[6], expires=60_000_000), job(id=ids[7], delay=1), job(id=ids[8], task="other")])
    first = (await store.exchange([], Claim("w", 1, (Want(4),)))).claimed
    yield first
    others = [decide(first[1], HandedBack()), decide(first[2], Snoozed(1)), decide(first[3], Snoozed(5_000_000))]
    yield await store.exchange([succeeded(first[0]), *others], Claim("w", 2, (Want(2), LIMITED)))
    yield await store.exchange([], Claim("w", 3, (Want(9, queues=("default",), tasks=("task",)),)))
    yield await store.exchange([], Claim("w", 4, (Want(9, queues=("nowhere",)), LIMITED)))
    yield await store.exchange([], Claim("w", 5, (Want(9, routing="none"),)))
    yield await store.exchange([], Claim("w", 6, (Want(9),)))


def at_once(most, *keys):
    return json.dumps([[key, most, None, None] for key in keys or ("k",)])


async def under_a_wide_limit(store, ids):
    """Lists of several kinds that wait at one gate, which has room for all of them."""
    limits = at_once(1000, "k", "another")
    await store.enqueue(UniformJobs(job(limits=limits), ids[:100], [f"[{number}]" for number in range(100)]))
    yield await store.exchange([], Claim("w", 1, (Want(9), Want(30, limited=True))))
    await store.enqueue([job(id=id, limits=limits, payload='["ü"]', priority=1) for id in reversed(ids[100:120])])
    await store.enqueue([job(id=id, limits=limits, max_attempts=192) for id in ids[120:130]])
    ends = [succeeded(record) for record in await store.recover_claim("w", 1)]
    for stamp in range(2, 7):
        answer = await store.exchange(ends, Claim("w", stamp, BOTH[:: 1 if stamp % 2 else -1]))
        yield answer
        ends = ends_of(answer.claimed, stamp)
    assert not ends


async def under_a_narrow_limit(store, ids):
    """There is room, then just enough, then none; closed gates, and open ones again."""
    await store.enqueue([job(id=id, limits=at_once(25)) for id in ids[:90]])
    held = []
    for stamp, limit in enumerate((20, 4, 1, 9), 1):
        answer = await store.exchange([], Claim("w", stamp, (Want(1), Want(limit, limited=True))))
        yield answer
        held += answer.claimed
    assert len(held) == 25
    for stamp in range(5, 13):
        ends, held = [succeeded(record) for record in held[:11]], held[11:]
        answer = await store.exchange(ends, Claim("w", stamp, BOTH) if stamp != 6 else None)
        yield answer
        held += answer.claimed
    yield await store.exchange([succeeded(record) for record in held])
    yield await store.exchange([], Claim("w", 13, BOTH))


async def the_last_under_a_limit(store, ids):
    """Some run under limits and nobody waits: they end in another order than they began, beside others, and jobs without
    limits come and go."""
    await store.enqueue([job(id=id, limits=at_once(1000, "k", "another")) for id in ids[:20]])
    await store.enqueue([job(id=id, limits=at_once(1000)) for id in ids[20:40]])
    first = (await store.exchange([], Claim("w", 1, (LIMITED, LIMITED)))).claimed
    rest = (await store.exchange([], Claim("w", 2, BOTH))).claimed
    assert (len(first), len(rest)) == (10, 30)
    yield await store.exchange([succeeded(record) for record in reversed(first[:4])], Claim("w", 3, BOTH))
    yield await store.exchange([succeeded(record) for record in first[5:8]], Claim("w", 4, (PLAIN,)))
    await store.enqueue([job(id=id) for id in ids[40:45]])
    claimed = await store.exchange([succeeded(record) for record in rest[::2]], Claim("w", 5, BOTH))
    assert len(claimed.claimed) == 1
    yield claimed
    yield await store.exchange([succeeded(first[4])], Claim("w", 6, (PLAIN, LIMITED)))
    await store.enqueue([job(id=id, limits=at_once(1000)) for id in ids[45:50]])
    ended = [*first[8:], *rest[1::2]]
    yield await store.exchange([succeeded(record) for record in ended], Claim("w", 7, (PLAIN, LIMITED)))
    yield await store.exchange([], Claim("w", 8, BOTH))


async def beside_other_gates(store, ids):
    """Jobs under other limits, rates, other tasks, jobs without limits, jobs that come back, expire or wait for a time."""
    wide = at_once(1000)
    await store.enqueue([job(id=id, limits=wide) for id in ids[:40]])
    first = (await store.exchange([], Claim("w", 1, BOTH[1:]))).claimed
    yield first
    await store.enqueue([job(id=id, limits=wide) for id in ids[40:80]])
    others = [decide(first[0], HandedBack()), decide(first[1], Snoozed(1)), decide(first[2], Snoozed(5_000_000))]
    yield await store.exchange([*others, *map(succeeded, first[3:20])], Claim("w", 2, (Want(4, limited=True),)))
    await store.enqueue([job(id=ids[80], limits=wide, expires=60_000_000)])
    yield await store.exchange([], Claim("w", 3, (Want(4, limited=True),)))
    await store.enqueue([job(id=ids[81]), job(id=ids[82], limits=wide, task="other")])
    yield await store.exchange([], Claim("w", 4, (Want(4), Want(4, limited=True))))
    yield await store.exchange([], Claim("w", 5, (Want(4, limited=True, tasks=("other",)),)))
    yield await store.exchange([], Claim("w", 6, (Want(4, limited=True, queues=("nowhere",)),)))
    rate = json.dumps([["k", 1000, None, None], ["r", None, 2, 3_000_000]])
    await store.enqueue([job(id=id, limits=rate) for id in ids[83:90]])
    yield await store.exchange([*map(succeeded, first[20:])], Claim("w", 7, (Want(90, limited=True),)))
    held = await store.recover_claim("w", 7)
    yield await store.exchange([*map(succeeded, held)], Claim("w", 8, (Want(90, limited=True),)))
    await store.enqueue([job(id=id, limits=at_once(1, "k")) for id in ids[90:95]])
    yield await store.exchange([], Claim("w", 9, BOTH))


STORIES = [
    lone,
    many,
    repeated,
    mixed,
    under_a_wide_limit,
    under_a_narrow_limit,
    the_last_under_a_limit,
    beside_other_gates,
]


@pytest.mark.parametrize("story", STORIES)
async def test_both_paths_write_and_return_the_same(url, story):
    ids = new_ids(130)
    other_url = url.replace("prefix=", "prefix=general-")
    clocks = ManualClock(), ManualClock()
    async with opened(url, clock=clocks[0]) as fast, opened(other_url, clock=clocks[1]) as general:
        answers, general_answers = story(fast, ids), story(general, ids)
        async for answer in answers:
            with without_fast_paths():
                assert answer == await anext(general_answers)
            assert content(url) == content(other_url)
            for clock in clocks:
                clock.advance(2)


async def test_ordinary_jobs_take_the_fast_path(own):
    """Which reads no names from the lanes."""
    server = own()
    async with opened(server.fresh()) as store:
        with client(server.url) as raw:
            for story, number in ((lone, 3), (many, 130)):
                raw.config_resetstat()
                async for _ in story(store, new_ids(number)):
                    pass
                assert "cmdstat_zrangebylex" not in raw.info("commandstats")
            with without_fast_paths():
                async for _ in lone(store, new_ids(3)):
                    pass
            assert "cmdstat_zrangebylex" in raw.info("commandstats")


async def test_bodies_that_cannot_be_read_are_set_aside(url):
    ids = new_ids(4)
    async with opened(url) as store:
        await store.enqueue([job(id=id, payload=f"[{number}]") for number, id in enumerate(ids)])
        with client(url) as raw:
            bodies = keys(url)["jobs"]
            raw.hdel(bodies, bytes.fromhex(ids[0].replace("-", "")))
            raw.hset(bodies, bytes.fromhex(ids[2].replace("-", "")), b"\x9c\xa3[2]")
        claimed = await store.claim(Claim("w", 1, (Want(9),)))
        assert [(record.id, record.payload) for record in claimed] == [(ids[1], "[1]"), (ids[3], "[3]")]
        aside = await store.get([ids[0], ids[2]])
        assert [record.state for record in aside] == [State.DEAD] * 2
        behind = ("max_attempts", "timeout", "backoff", "retention", "dead_retention")  # they follow in the same body
        assert [unreadable_fields(record.reason) for record in aside] == [("payload", *behind), behind]
        assert {row.id for row in await store.unreadable()} == {ids[0], ids[2]}
