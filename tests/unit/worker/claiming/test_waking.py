"""What ends a worker's sleep: a signal from another process, or the poll alone where signals are switched off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from perdure import Perdure
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.faults import Claims

LONG = 120.0  # seconds of a poll that no test waits for
ENQUEUE = """
import asyncio, sys
from perdure import Perdure
app = Perdure(sys.argv[1], durability="relaxed")

@app.task(name="note")
async def note() -> None: ...

async def main():
    async with app:
        await note.using(delay=float(sys.argv[2])).enqueue()

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", *OF_EACH_KIND])
def url(request, tmp_path):
    return address(request.param, tmp_path)


def quietly(url):
    """The same store without signals."""
    return f"{url}{'&' if '?' in url else '?'}signals=off"


async def enqueue_elsewhere(url, delay):
    """Enqueue in another process; gives when that was done."""
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", ENQUEUE, url, str(delay), stderr=subprocess.PIPE)
    _, trouble = await other.communicate()
    assert other.returncode == 0, trouble.decode()
    return time.monotonic()


def watched(url):
    """An app, and when each of its jobs began."""
    app = Perdure(url, durability="relaxed")
    began = asyncio.Queue()

    @app.task(name="note")
    async def note() -> None:
        await began.put(time.monotonic())

    return app, began


async def test_a_delayed_job_of_another_process_begins_in_time_whatever_the_poll(url):
    app, began = watched(url)
    async with app, app.worker(poll=LONG):
        await enqueue_elsewhere(url, 0)
        async with asyncio.timeout(20):
            await began.get()  # the worker has been woken, and sleeps again
        enqueued = await enqueue_elsewhere(url, 1.5)
        async with asyncio.timeout(20):
            late = await began.get() - enqueued - 1.5
    assert late < 1


async def test_a_worker_that_only_polls_finds_every_job(url):
    app, began = watched(quietly(url))
    async with app, app.worker(poll=0.2):
        for delay in (0, 0.3):
            await enqueue_elsewhere(quietly(url), delay)
            async with asyncio.timeout(20):
                await began.get()


async def test_no_signal_reaches_a_worker_that_has_switched_them_off(url, monkeypatch):
    app, began = watched(quietly(url))
    claims = Claims(await app._runtime.storage(), monkeypatch)
    async with app, app.worker(poll=LONG):
        await claims.cease()
        await enqueue_elsewhere(url, 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await began.get()


async def test_no_signal_is_sent_where_they_are_switched_off(url, monkeypatch):
    if url.startswith("sqlite"):
        pytest.skip("a worker on a SQLite file also sees that the file was written")
    app, began = watched(url)
    claims = Claims(await app._runtime.storage(), monkeypatch)
    async with app, app.worker(poll=LONG):
        await enqueue_elsewhere(url, 0)
        async with asyncio.timeout(20):
            await began.get()
        await claims.cease()
        await enqueue_elsewhere(quietly(url), 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await began.get()
