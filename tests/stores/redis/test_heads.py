"""The heads of lanes agree with the lanes, and are corrected when they do not."""

import random

from perdure.core.lifecycle import Cancelled, Succeeded, decide
from perdure.testing.conformance.tools import job

from .helpers import claim, client, jobs, keys, opened

QUEUES = [f"q{number}" for number in range(30)]


def heads(url):
    with client(url) as raw:
        return set(raw.zrange(keys(url)["heads"], 0, -1))


def heads_of_the_lanes(url):
    """What `heads` must hold: the first member of each lane of a queue that is not paused."""
    firsts = {}
    with client(url) as raw:
        paused = raw.smembers(keys(url)["paused"])
        for member in raw.zrange(keys(url)["lanes"], 0, -1):
            queue, task, routing, *rest = member[2:].split(b"\0", 3)
            place = b"\0".join(rest)
            if queue not in paused:
                head = member[:2] + task + b"\0" + routing + b"\0" + place[:28] + queue + b"\0" + place[28:]
                firsts.setdefault((member[:2], queue, task, routing), head)
    return set(firsts.values())


async def test_heads_follow_the_lanes_whatever_happens(url):
    chance = random.Random(7)
    async with opened(url) as store:
        held = []
        for _ in range(150):
            match chance.randrange(6):
                case 0 | 1:
                    options = {"expires": 60_000_000} if chance.random() < 0.3 else {}
                    priority = chance.randrange(3)
                    await store.enqueue(
                        [job(queue=chance.choice(QUEUES), priority=priority, **options) for _ in range(9)]
                    )
                case 2:
                    await store.enqueue(jobs(3, queue=chance.choice(QUEUES)))
                case 3:
                    held += await store.claim(claim(chance.choice([1, 5, 40])))
                case 4:
                    await store.pause(chance.choice(QUEUES), chance.random() < 0.5)
                case 5 if held:
                    await store.apply([decide(held.pop(), chance.choice([Succeeded(), Cancelled("no")]))])
            assert heads(url) == heads_of_the_lanes(url)


async def test_a_lost_head_is_put_back(url):
    async with opened(url) as store:
        await store.enqueue([job(queue=queue) for queue in QUEUES])
        with client(url) as raw:
            raw.delete(keys(url)["heads"])
        await store.prune(100)
        assert heads(url) == heads_of_the_lanes(url) != set()


async def test_a_head_of_no_job_is_dropped(url):
    async with opened(url) as store:
        await store.enqueue([job(queue=queue) for queue in QUEUES])
        with client(url) as raw:
            first = raw.zrange(keys(url)["heads"], 0, 0)[0]
            start = len(b"r\1task\0-\0")
            raw.zadd(keys(url)["heads"], {first[:start] + bytes(28) + b"q5\0": 0})
            raw.zadd(keys(url)["heads"], {first[:start] + bytes(28) + b"nowhere\0": 0})
        claimed = await store.claim(claim(7))
        assert len({record.id for record in claimed}) == 7
        assert heads(url) == heads_of_the_lanes(url)
