"""Several at once on one server: what races is decided once, and a campaign of kills on both sides loses nothing."""

import asyncio
import os
import random
from collections import Counter

from perdure import State
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, LeaseLapsed, Succeeded, decide
from perdure.storage.contract import Claim, Filter, QueueAtCapacity, QueueSettings, Want
from perdure.testing.conformance.tools import job, unique
from tests.support.waiting import eventually

from .helpers import claim, jobs, opened
from .test_worker import Plant

SIDES = 6


async def at_once(url, work):
    """Each side has a store and connections of its own; only the server knows of all of them."""

    async def side(number):
        async with opened(url) as store:
            return await work(store, number)

    return await asyncio.gather(*(side(number) for number in range(SIDES)))


async def test_every_job_is_claimed_once(url):
    async with opened(url) as store:
        new = jobs(500)
        await store.enqueue(new)

        async def claims(own, number):
            taken = []
            while claimed := await own.claim(Claim(f"w{number}", new_stamp(), (Want(7),))):
                taken += [record.id for record in claimed]
            return taken

        taken = Counter(id for side in await at_once(url, claims) for id in side)
        assert taken == Counter(each.id for each in new)


async def test_a_key_is_taken_once(url):
    scopes = ("waiting", "active", "any", "window")

    async def enqueues(own, number):
        placed = []
        for key in random.Random(number).sample(range(40), 40):
            new = unique(scopes[key % 4], f"k{key}", unique_window=3_600_000_000)
            placed.append((key, (await own.enqueue([new]))[0]))
        return placed

    answers = [answer for side in await at_once(url, enqueues) for answer in side]
    assert len({placed.id for _, placed in answers}) == 40
    assert sum(not placed.duplicate for _, placed in answers) == 40
    async with opened(url) as store:
        assert await store.count(Filter()) == 40


async def test_a_bounded_queue_is_never_overfull(url):
    async with opened(url) as store:
        await store.configure(QueueSettings("default", max_depth=25))

        async def enqueues(own, number):
            stored = 0
            for _ in range(10):
                try:
                    stored += len(await own.enqueue(jobs(3)))
                except QueueAtCapacity:
                    continue
            return stored

        stored = sum(await at_once(url, enqueues))
        assert stored == await store.count(Filter()) == 24  # another three would be 27


async def test_finish_against_cancel_against_reap(url):
    async with opened(url) as store:
        await store.enqueue(jobs(60, lease=1))
        held = await store.claim(claim(60))
        await asyncio.sleep(0.01)
        words = [Succeeded("1"), Cancelled("enough"), LeaseLapsed(), Succeeded("1"), Cancelled(), LeaseLapsed()]

        async def says(own, number):
            order = random.Random(number).sample(held, len(held))
            verdicts = {}
            for record in order:
                (verdict,) = await own.apply([decide(record, words[number])])
                verdicts[record.id] = verdict.accepted and not verdict.repeated
            return verdicts

        sides = await at_once(url, says)
        states = {record.id: record.state for record in await store.get([record.id for record in held])}
        wanted = {Succeeded: State.SUCCEEDED, Cancelled: State.CANCELLED, LeaseLapsed: State.READY}
        for record in held:
            winners = [type(words[number]) for number, side in enumerate(sides) if side[record.id]]
            assert len(winners) == 1
            assert states[record.id] is wanted[winners[0]]


async def test_a_campaign_of_kills(own, tmp_path):
    """Workers and the server are killed again and again. Every acknowledged job ends, and each of its holds speaks once."""
    seed = int(os.environ.get("PERDURE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PERDURE_SEED={seed}")
    chance = random.Random(seed)
    server = own(appendfsync="always")
    plant = Plant(tmp_path, server.fresh())
    try:
        async with plant.app:
            alive = [plant.start() for _ in range(3)]
            handles = []

            async def begun(some):
                async def enough():
                    return len(plant.begun()) >= some

                await plant.until(enough)

            for number in range(8):
                calls = [plant.work.call(50 * number + each) for each in range(50)]
                handles += await plant.app.enqueue(calls)
                await begun(35 * number + 10)
                if number % 3 == 2:
                    server.kill()
                    server.restart()
                else:
                    victim = chance.randrange(len(alive))
                    alive[victim].kill()
                    alive[victim] = plant.start()

            async def all_ended():
                return await plant.app.jobs.count(state=[State.SUCCEEDED, State.DEAD]) == len(handles)

            await plant.until(all_ended, 90)
            store = await plant.app._runtime.storage()
            rows = await store.get([str(handle.id) for handle in handles])
    finally:
        plant.stop()
    begun_times = plant.begun()
    for row in rows:
        assert (row.state, row.failures) == (State.SUCCEEDED, 0), row
        # one move by each claim, one by what ended it: the holder's word, or a reaper's
        assert row.version == 1 + 2 * row.attempt, row
        assert 1 <= begun_times[row.result] <= row.attempt, row
        assert (row.stamp, row.leased_until) == (None, None)
    print(f"{len(rows)} jobs, {sum(begun_times.values())} attempts begun")


async def test_a_job_is_not_claimed_after_its_queue_was_paused(url):
    async with opened(url) as store, opened(url) as other:
        await store.enqueue([job() for _ in range(200)])

        async def claims():
            taken = 0
            while claimed := await other.claim(claim(1)):
                taken += len(claimed)
            return taken

        claiming = asyncio.create_task(claims())
        await eventually(lambda: store.count(Filter(states=(State.RUNNING,))))
        await store.pause("default", True)
        running = await store.count(Filter(states=(State.RUNNING,)))
        assert await claiming == running
        assert await store.count(Filter(states=(State.RUNNING,))) == running
