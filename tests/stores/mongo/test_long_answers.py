"""Answers that do not fit into one message of the server come in several, also to many who ask at once."""

import asyncio

from .helpers import job, store_at


async def test_jobs_whose_payloads_are_more_than_one_message():
    async with store_at() as store:
        jobs = [job(payload=f'"{number:02}{"x" * 1_000_000}"') for number in range(20)]
        for one in jobs:
            await store.enqueue([one])
        ids = [one.id for one in jobs]
        answers = await asyncio.gather(*(store.get(ids) for _ in range(4)), *(store.get(ids[:1]) for _ in range(8)))
    for answer in answers[:4]:
        assert [record.payload[:3] for record in answer] == [one.payload[:3] for one in jobs]
