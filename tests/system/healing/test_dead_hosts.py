"""Jobs of a host that is gone, with everybody on it who could tell: they come back within a second of the end of their
lease."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from perdure import Perdure, State
from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.storage.contract import Claim, Want
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.plant import Plant, alive
from tests.support.waiting import wait_until

LEASES = {"running": 1.5, "fresh": 8.0}  # seconds; a fresh worker takes some to start, even on a busy machine
WITHIN = 1.0  # seconds after the lease


async def came_back(app: Perdure, ids: list[str], deadline: float) -> dict[str, float]:
    """When each job was seen to be claimable again, or claimed by another."""
    back: dict[str, float] = {}
    while len(back) < len(ids):
        for id in ids:
            job = await app.jobs.get(id)
            if id not in back and (job.attempt > 1 or job.state is not State.RUNNING):
                back[id] = time.time()
        assert time.time() < deadline, f"{len(back)} of {len(ids)} came back"
        await asyncio.sleep(0.02)
    return back


async def test_leases_that_end_at_any_moment(app, machine):
    """Each was given to another worker, which is gone. Whenever a lease ends, upkeep looks right then."""

    async def work() -> None: ...

    leases = [1.0 + 0.23 * number for number in range(12)]
    tasks = [app.task(name=f"work{number}", lease=lease)(work) for number, lease in enumerate(leases)]
    async with app:
        store = await app._runtime.storage()
        async with app.worker(poll=60, queues=["elsewhere"]):
            await asyncio.sleep(1.1)  # it has reached the store for a third of each lease before that ends
            ids, ends = [], {}
            for number, lease in enumerate(leases):
                handle = await tasks[number].enqueue()
                claim = Claim(f"ghost-{number}", new_stamp(), (Want(1),))
                (record,) = await store.claim(claim)
                assert record.id == str(handle.id)
                assert record.lease == round(lease * SECOND)
                ids.append(record.id)
                ends[record.id] = time.time() + lease
            back = await came_back(app, ids, time.time() + 30)
    late = sorted(back[id] - ends[id] for id in ids)
    assert late[0] > -0.1, "none comes back before its lease is over"
    assert late[-1] < machine.seconds(WITHIN), late


class Host(Plant):
    """A plant whose jobs have a lease of so many seconds."""

    def __init__(self, folder: Path, url: str, lease: float) -> None:
        self.lease = lease
        super().__init__(folder, url)

    def write(self, generation: int) -> str:
        text = super().write(generation).replace("lease=1.5", f"lease={self.lease}")
        (self.folder / "plant.py").write_text(text)
        return text


@pytest.fixture(params=["sqlite", *OF_EACH_KIND])
def plant(request, other, tmp_path):
    plant = Host(tmp_path, address(request.param, tmp_path), LEASES[other])
    yield plant
    plant.stop()


def kill_host(plant: Plant, number: int) -> float:
    """Kill a worker, its supervisor first, so that nobody is left to report the loss."""
    supervisor = plant.workers[number]
    runners = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    for pid in (supervisor.pid, *map(int, runners)):
        os.kill(pid, signal.SIGKILL)
    killed = time.time()
    supervisor.wait()
    wait_until(lambda: not any(alive(int(pid)) for pid in runners))
    return killed


@pytest.mark.parametrize("other", ["fresh", "running"])
async def test_a_host_that_is_killed(plant, other, machine):
    async with plant.app:
        plant.start("--concurrency", "6")
        ids = [await plant.enqueue("waits", str(plant.folder / "never")) for _ in range(6)]
        wait_until(lambda: len(plant.lines()) == 6)
        if other == "running":
            plant.start("--concurrency", "6")
            wait_until(lambda: plant.said().count(" started: 6 slots") == 2)
            await asyncio.sleep(plant.lease)
        killed = due = kill_host(plant, 0)
        if other == "fresh":
            plant.start("--concurrency", "6")
            wait_until(lambda: plant.said().count(" started: 6 slots") == 2)
            # on a very busy machine it starts so late that it has to reach the store for a third of a lease first
            due = max(killed, time.time() - plant.lease * 2 / 3)
        back = await came_back(plant.app, ids, killed + 30)
        late = sorted(each - due - plant.lease for each in back.values())
        assert late[-1] < machine.seconds(WITHIN), late
        (plant.folder / "never").touch()
