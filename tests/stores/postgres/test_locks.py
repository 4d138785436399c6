"""Several connections at the same rows: nobody stands in another's way for ever, and who only reads misses nothing."""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from psycopg.errors import DeadlockDetected

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, Failed, Retried, Snoozed, Succeeded, decide, success_of
from perdure.storage.contract import Claim, Filter, Note, Want
from perdure.testing.conformance.tools import fault

from .helpers import job, opened


@pytest.fixture
def chance():
    """Everything random in a test comes from here; PERDURE_SEED repeats a run."""
    seed = int(os.environ.get("PERDURE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PERDURE_SEED={seed}")
    return random.Random(seed)


async def _claimed(store, count: int):
    await store.enqueue([job() for _ in range(count)])
    return await store.claim(Claim("w", new_stamp(), (Want(count),)))


async def test_many_words_about_the_same_jobs_in_any_order_never_deadlock(own_server, own_url, chance):
    """The server notes each deadlock in its log, also one that we would repeat and never tell."""
    began = len(own_server.process.log())
    words = [Succeeded("1"), Snoozed(0), Failed(fault(), retryable=True)]
    async with opened(own_url) as one, opened(own_url) as other, opened(own_url) as third:
        for number in range(12):
            records = await _claimed(one, 100)
            mixed = [chance.sample(records, len(records)) for _ in range(6)]
            await asyncio.gather(
                one.apply([decide(each, words[number % 3]) for each in mixed[0]]),
                other.renew([each.hold for each in mixed[1]]),
                other.note([Note(each.hold, progress="1") for each in mixed[2][:50]]),
                third.renew([each.hold for each in mixed[3]]),
                third.note([Note(each.hold, lines=("line",)) for each in mixed[4][:50]]),
                third.apply([decide(each, Cancelled()) for each in mixed[5][:50]]),
                other.promote(100),
                other.lapsed(100, 10**9),
                third.prune(100),
            )
    assert "deadlock detected" not in own_server.process.log()[began:]


async def test_who_reads_sees_every_job_wherever_it_moves(own_url):
    """Ready, running, ended and back again are rows of different tables: a look finds each job in one of them."""
    async with opened(own_url) as store, opened(own_url) as reader:
        records = await _claimed(store, 30)
        ids = [record.id for record in records]
        over = asyncio.Event()

        async def move() -> None:
            held = records
            for _ in range(25):
                await store.apply([decide(each, Failed(fault(), retryable=False)) for each in held])
                dead = await store.get(ids)
                await store.apply([decide(each, Retried()) for each in dead])
                held = await store.claim(Claim("w", new_stamp(), (Want(30),)))
            over.set()

        async def read() -> int:
            looks = 0
            while not over.is_set():
                assert None not in await reader.get(ids)
                assert await reader.count(Filter()) == 30
                assert len((await reader.find(Filter(), 50, None))[0]) == 30
                looks += 1
            return looks

        _, looks = await asyncio.gather(move(), read())
        assert looks > 5


async def test_a_host_that_dies_does_not_keep_its_locks(own_url):
    """Sessions from which nothing is heard are ended by the server; a handler's transaction when its time is over."""

    async def shown(connection) -> list[str]:
        names = ("idle_in_transaction_session_timeout", "tcp_keepalives_idle", "tcp_keepalives_count")
        return [(await (await connection.execute(f"show {name}")).fetchone())[0] for name in names]

    async with opened(own_url) as store:
        assert await store._server().run_indexed(shown) == ["1min", "30", "3"]
        transaction = await store.begin_transaction(7 * SECOND)
        ((longest,),) = await transaction.execute("show idle_in_transaction_session_timeout")
        assert longest == "14s"  # ours comes first, at 7 s
        await transaction.rollback()


async def test_a_conflict_after_the_claim_leaves_no_job_behind(own_url, monkeypatch):
    """A refused word is looked at once the claim is through. Should that meet a conflict, it alone is repeated: a second
    claim under the same stamp would leave those of the first to wait for the end of their lease."""
    async with opened(own_url) as store:
        gone, *held = await _claimed(store, 3)
        await store.apply([decide(gone, Cancelled())])
        await store.enqueue([job() for _ in range(4)])
        apply, conflicts = store._apply.apply, [DeadlockDetected("deadlock detected")]

        async def conflicting(*given):
            if conflicts:
                raise conflicts.pop()
            return await apply(*given)

        monkeypatch.setattr(store._apply, "apply", conflicting)
        claim = Claim("w", new_stamp(), (Want(2),))
        answer = await store.exchange([success_of(each, None, 1) for each in (gone, *held)], claim)
        assert [verdict.accepted for verdict in answer.verdicts] == [False, True, True]
        assert not conflicts
        assert {each.id for each in answer.claimed} == {each.id for each in await store.recover_claim("w", claim.stamp)}
        assert len(answer.claimed) == 2
