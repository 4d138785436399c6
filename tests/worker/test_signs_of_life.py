"""Tasks that are declared while a worker is at work."""

import asyncio

import pytest

from holdfast import Holdfast
from holdfast.worker import worker as workers


@pytest.mark.parametrize(("chosen", "told"), [(None, 1), (["early"], 0)])
async def test_a_task_that_comes_late_is_named_once(caplog, monkeypatch, chosen, told):
    monkeypatch.setattr(workers, "BEAT", 0.01)
    app = Holdfast("memory://")

    @app.task
    async def early() -> None: ...

    async with app.worker(tasks=chosen):

        @app.task
        async def late() -> None: ...

        beats = 0
        store = await app._storage()
        beat = store.beat

        async def counted(row):
            nonlocal beats
            beats += 1
            await beat(row)

        monkeypatch.setattr(store, "beat", counted)
        async with asyncio.timeout(5):
            while beats < 3:
                await asyncio.sleep(0)
    assert sum("does not run late: declared after it started" in text for text in caplog.messages) == told
