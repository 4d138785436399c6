"""A worker that is killed in the middle of a batch: what had its outcome keeps it, the rest comes back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perdure import Item, Perdure, State
from tests.support.addresses import OF_EACH_KIND, address

PROGRAM = """
import asyncio, os, signal, sys
from perdure import Perdure, Item

app = Perdure(sys.argv[1])

@app.batch_task(name="charge", size=3, wait=5, lease=1)
async def charge(items: list[Item[int]]) -> None:
    await items[0].succeed("before the kill")
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with app.worker():
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("store", ["sqlite", *OF_EACH_KIND])
async def test_items_settled_before_a_kill_stay_settled_and_the_others_run_again(store, tmp_path):
    url = address(store, tmp_path)
    app = Perdure(url)
    ran = []

    @app.batch_task(name="charge", size=3, wait=0.05, lease=1)
    async def charge(items: list[Item[int]]) -> list[str]:
        ran.extend((item.args, item.job.attempt) for item in items)
        return [f"after the kill {item.args}" for item in items]

    async with app:
        handles = await app.enqueue([charge.call(n) for n in range(3)])
        killed = subprocess.run([sys.executable, "-c", PROGRAM, url], timeout=60)
        assert killed.returncode == -9
        first = await handles[0].refresh()
        assert (first.state, first.result, first.attempt) == (State.SUCCEEDED, "before the kill", 1)
        async with app.worker(poll=0.1):
            assert [await handle.result(timeout=30) for handle in handles[1:]] == [
                "after the kill 1",
                "after the kill 2",
            ]
    assert sorted(ran) == [(1, 2), (2, 2)]
