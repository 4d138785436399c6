"""Long enqueues that are under way at once keep their order."""

import asyncio

import pytest

from perdure.core.ids import new_ids, new_stamp
from perdure.core.record import UniformJobs
from perdure.storage.contract import Claim, QueueAtCapacity, QueueSettings, Want
from tests.support.real_servers import kinds_with_a_store, server

from .helpers import job, opened

KINDS = [kind for kind in kinds_with_a_store() if kind.startswith("postgres")]
PARTS, MANY = 6, 200


@pytest.fixture(params=KINDS)
def url(request):
    return server(request.param).fresh()


def alike(**fields):
    return UniformJobs(job(**fields), new_ids(MANY), [f'{{"n":{n}}}' for n in range(MANY)])


async def test_jobs_are_claimed_in_the_order_of_the_calls(url):
    async with opened(url) as store:
        for _ in range(5):
            parts = [alike() for _ in range(PARTS)]
            placed = await asyncio.gather(*(store.enqueue(part) for part in parts))
            ids = [id for part in parts for id in part.ids]
            assert [each.id for part in placed for each in part] == ids
            claimed = (await store.exchange([], Claim("worker", new_stamp(), (Want(PARTS * MANY),)))).claimed
            assert [record.id for record in claimed] == ids


async def test_what_depends_on_those_before_waits_for_them(url):
    async with opened(url) as store:
        parts = [[job(unique_key=f"{n}", unique_scope="active") for n in range(MANY)] for _ in range(PARTS)]
        first, *others = await asyncio.gather(*(store.enqueue(part) for part in parts))
        assert not any(each.duplicate for each in first)
        assert all(
            each.duplicate and each.id == owner.id for part in others for each, owner in zip(part, first, strict=True)
        )


async def test_the_room_of_a_bounded_queue_is_for_the_first(url):
    async with opened(url) as store:
        await store.configure(QueueSettings("default", False, 2 * MANY))
        answers = await asyncio.gather(*(store.enqueue(alike()) for _ in range(PARTS)), return_exceptions=True)
        assert [isinstance(answer, QueueAtCapacity) for answer in answers] == [False, False, *[True] * (PARTS - 2)]


async def test_one_that_is_repeated_is_stored_once(url):
    async with opened(url) as store:
        part = alike()
        await asyncio.gather(*(store.enqueue(part) for _ in range(PARTS)))
        claimed = (await store.exchange([], Claim("worker", new_stamp(), (Want(PARTS * MANY),)))).claimed
        assert [record.id for record in claimed] == list(part.ids)


async def test_a_call_that_is_given_up_keeps_nobody_waiting(url):
    async with opened(url) as store:
        keyed = [job(unique_key=f"{n}", unique_scope="active") for n in range(MANY)]
        calls = [asyncio.create_task(store.enqueue(each)) for each in (alike(), alike(), keyed)]
        await asyncio.sleep(0)
        calls[1].cancel()
        async with asyncio.timeout(20):
            await asyncio.wait(calls)
        assert len(await calls[2]) == MANY
