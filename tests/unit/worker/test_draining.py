"""`drain` leaves no due job behind that its own worker has claimed and handed back."""

from __future__ import annotations

import asyncio

from perdure import Context, State
from perdure.testing import drain
from perdure.worker.worker import Worker


async def test_a_job_that_is_claimed_after_the_last_look_and_handed_back(app, monkeypatch):
    """`drain` has found nothing left and stops its worker, which takes a job just before it stops."""
    begun, handles, stop = asyncio.Event(), [], Worker._stop

    @app.task
    async def work(ctx: Context) -> int:
        begun.set()
        if ctx.job.attempt == 1:
            await asyncio.Event().wait()  # until it is told to stop
        return ctx.job.attempt

    async def claim_before_stopping(worker, *arguments):
        if not handles:
            handles.append(await work.enqueue())
            await asyncio.wait_for(begun.wait(), 20)
        await stop(worker, *arguments)

    monkeypatch.setattr(Worker, "_stop", claim_before_stopping)
    async with app:
        await drain(app)
        job = await app.jobs.get(handles[0].id)
    assert (job.state, job.attempt, job.failures, job.result) == (State.SUCCEEDED, 2, 0, 2)
