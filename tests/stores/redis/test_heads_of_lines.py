"""The heads of lines under limits are known over all queues too, and are corrected when they are wrong."""

import random

import pytest

from perdure.core.lifecycle import Succeeded, decide
from perdure.testing.conformance.tools import job
from tests.support.real_servers import server

from .helpers import claim, client, keys, opened

QUEUES = [f"q{number}" for number in range(30)]


def members(url, kind):
    with client(url) as raw:
        return set(raw.zrange(keys(url)["limits"], b"[" + kind, b"(" + bytes([kind[0] + 1]), bylex=True))


def over_queues(url):
    """The heads that a claim for every queue must find: those of all open lines in queues that are not paused."""
    found = set()
    with client(url) as raw:
        paused = raw.smembers(keys(url)["paused"])
    for head in members(url, b"o"):
        queue, task, routing, rest = head[3:].split(b"\0", 3)
        if queue not in paused:
            found.add(b"q" + head[1:3] + task + b"\0" + routing + b"\0" + rest[:28] + queue + b"\0" + head[-16:])
    return found


def limited(queue, key=None, most=2, priority=0):
    return job(queue=queue, priority=priority, limits=f'[["{key or queue}", {most}, null, null]]')


async def test_the_heads_follow_the_lines_whatever_happens(url):
    chance = random.Random(11)
    async with opened(url) as store:
        held = []
        for _ in range(150):
            queue = chance.choice(QUEUES)
            match chance.randrange(6):
                case 0 | 1:
                    await store.enqueue([limited(queue, priority=chance.randrange(3)) for _ in range(4)])
                case 2:
                    await store.enqueue([limited(queue, "shared", most=5) for _ in range(3)])
                case 3:
                    held += await store.claim(claim(chance.choice([1, 5, 40]), limited=True))
                case 4:
                    await store.pause(queue, chance.random() < 0.5)
                case 5 if held:
                    await store.apply([decide(held.pop(chance.randrange(len(held))), Succeeded())])
            assert members(url, b"q") == over_queues(url)
        assert held


async def test_one_line_alone_keeps_its_head_too(url):
    async with opened(url) as store:
        await store.enqueue([limited("q0", most=50) for _ in range(6)])
        for left in (4, 2, 0):
            assert len(await store.claim(claim(2, limited=True))) == 2
            assert members(url, b"q") == over_queues(url)
            assert bool(members(url, b"q")) is bool(left)


@pytest.mark.parametrize("damage", ["lost", "stale", "paused"])
async def test_a_head_that_is_wrong_is_corrected(url, damage):
    async with opened(url) as store:
        await store.enqueue([limited(queue) for queue in QUEUES])
        await store.pause("q1", True)
        (head, *_) = sorted(members(url, b"q"))
        start = len(b"qr\1task\0-\0")
        with client(url) as raw:
            limits = keys(url)["limits"]
            if damage == "lost":
                raw.zrem(limits, head)
            elif damage == "stale":
                raw.zadd(limits, {head[:start] + bytes(28) + head[start + 28 :]: 0})
            else:
                raw.zadd(limits, {head[:start] + bytes(28) + b"q1\0" + head[-16:]: 0})
        if damage == "lost":
            await store.prune(100)
        else:
            assert len(await store.claim(claim(3, limited=True))) == 3
        assert members(url, b"q") == over_queues(url)
        await store.claim(claim(99, limited=True))
        assert members(url, b"q") == set()


async def test_a_claim_runs_as_many_commands_with_many_queues_as_with_few(kind):
    few, many = [await commands_of_a_claim(server(kind).fresh(), queues) for queues in (20, 2_000)]
    assert many <= few + 5


async def commands_of_a_claim(url, queues):
    """How many commands the server runs for a claim of two jobs, those inside scripts included."""
    async with opened(url) as store:
        await store.enqueue([limited(f"q{number}", most=9) for number in range(queues)])
        await store.claim(claim(2, limited=True))
        with client(url) as raw:
            raw.config_resetstat()
            assert len(await store.claim(claim(2, limited=True))) == 2
            return sum(each["calls"] for each in raw.info("commandstats").values())
