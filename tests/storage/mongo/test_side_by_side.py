"""Exchanges of one store that are under way together take different jobs, and never undo each other's work."""

import asyncio

from holdfast.lifecycle import succeeded
from holdfast.storage.mongo import steps
from holdfast.storage.mongo.faults import Conflict
from holdfast.storage.mongo.tickets import Tickets

from .helpers import claim, job, store_at


def _ends(step):
    return isinstance(step, steps.Update) and "succeeded" in str(step.statements)


async def test_one_that_began_before_another_was_committed_takes_other_jobs(monkeypatch):
    """Its snapshot still shows the places of what the other has taken."""
    begun, committed, conflicts = asyncio.Event(), asyncio.Event(), []
    monkeypatch.setattr(Tickets, "conflict", conflicts.append)
    take = steps._take

    async def step_taken(step, database, session):
        came = await take(step, database, session)
        if _ends(step):
            begun.set()
            await committed.wait()
        return came

    async with store_at() as store:
        await store.enqueue([job() for _ in range(21)])
        (ended,) = await store.claim(claim(1))
        server = store._in_use()
        commit = server.commit

        async def committed_late(session, patience):
            await begun.wait()
            await commit(session, patience)

        monkeypatch.setattr(steps, "_take", step_taken)
        monkeypatch.setattr(server, "commit", committed_late)
        first = asyncio.create_task(store.exchange([], claim(10)))
        await asyncio.sleep(0)
        second = asyncio.create_task(store.exchange([succeeded(ended, None, None)], claim(10)))
        one = (await first).claimed
        committed.set()
        other = (await second).claimed
    assert not conflicts
    assert len({record.id for record in [*one, *other]}) == 20


async def test_what_another_failed_to_take_is_taken(monkeypatch):
    async with store_at() as store:
        await store.enqueue([job() for _ in range(5)])
        server = store._in_use()
        failing, failed = asyncio.Event(), asyncio.Event()

        async def no_commit(session, patience):
            failing.set()
            await failed.wait()
            raise Conflict("nothing of it was done")

        monkeypatch.setattr(server, "commit", no_commit)
        first = asyncio.create_task(store._exchanges._try([], claim(5), [], None, iter([None])))
        await failing.wait()
        monkeypatch.undo()
        with store._exchanges._beside_others(None) as choice:
            assert len(choice.others()) == 5
            failed.set()
            await asyncio.wait([first])
            assert not choice.others()
        assert isinstance(first.exception(), Conflict)
        assert len(await store.claim(claim(5))) == 5
