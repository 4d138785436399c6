"""Very many keys of limits: a claim asks the server about a bounded number of gates, however many there are."""

import pytest

from perdure.storage.mongo.connection import operations
from perdure.storage.mongo.limits.limit_gates import AT_ONCE
from perdure.testing.conformance.tools import job

from .helpers import claim, store_at


def limited(number, most=1):
    return job(queue=f"q{number}", limits=f'[["k{number}",{most},null,null]]')


@pytest.fixture
def asked(monkeypatch):
    """How many look-ups each pipeline had that the server was sent."""
    noted = []
    take = operations._take

    async def noting(step, database, session):
        if isinstance(step, operations.Aggregate):
            noted.append(len(step.pipeline))
        return await take(step, database, session)

    monkeypatch.setattr(operations, "_take", noting)
    return noted


@pytest.mark.parametrize("queues", [AT_ONCE + 1, 1_500])
async def test_jobs_with_a_key_each_that_come_together_are_claimed(queues, asked):
    async with store_at() as store:
        jobs = [limited(number) for number in range(queues)]
        for begin in range(0, queues, store.chunk):
            await store.enqueue(jobs[begin : begin + store.chunk])
        assert len(await store.claim(claim(20, limited=True))) == 20
        assert len(await store.claim(claim(20, limited=True))) == 20
        assert max(asked) < 2 * AT_ONCE
