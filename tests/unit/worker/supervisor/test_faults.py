"""Everything a handler can do to its process, under a supervisor, on every store: the job gets its next attempt soon, and is
charged as it should be.

`./dev faults` runs the whole matrix and prints how long each took; the suite runs all of it on SQLite, two faults elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from perdure import State
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.plant import Plant, alive
from tests.support.waiting import wait_until

LEASE, TIMEOUT = 1.5, 1.0
# fault: task, arguments, seconds from its begin on in which the next attempt must have begun
DEATHS = {
    "kill -9": ("dies", ("wait",), 1.0),
    "os._exit": ("dies", ("exit",), 1.0),
    "segfault": ("dies", ("segfault",), 1.0),
    "out of memory": ("dies", ("memory",), 1.0),
    "SIGSTOP": ("dies", ("stop",), LEASE + 1.0),
}
OVERRUNS = {
    "loop blocked": ("overruns", ("sleep",), TIMEOUT + 3.0),
    "GIL held": ("overruns", ("gil",), TIMEOUT + 3.0),
    "endless coroutine": ("overruns", ("swallow",), TIMEOUT + 7.0),
    "endless thread": ("ignores", (), TIMEOUT + 1.0),
}
FAULTS = {**DEATHS, **OVERRUNS}
SLACK = 2.0  # seconds: the machine that tests is busy
SHORT = ("kill -9", "loop blocked")

stores = [
    pytest.param("sqlite", tuple(FAULTS), id="sqlite"),
    *(pytest.param(name, SHORT, id=name) for name in OF_EACH_KIND),
    *(
        pytest.param(name, tuple(FAULTS), id=f"{name}-all", marks=pytest.mark.slow)
        for name in ("sqlite", *OF_EACH_KIND)
    ),
]


@pytest.mark.parametrize(("store", "faults"), stores)
async def test_the_next_attempt_comes_soon_and_the_right_one_pays(store, faults, tmp_path):
    plant = Plant(tmp_path, address(store, tmp_path))
    took = {}
    plant.start("--concurrency", "4")
    try:
        async with plant.app:
            for fault in faults:
                took[fault] = await _next_attempt(plant, fault)
        assert plant.stop() == [0]
    finally:
        plant.stop()
    for fault, seconds in took.items():
        print(f"FAULT {store:10} {fault:18} next attempt after {seconds:6.2f} s")


async def _next_attempt(plant: Plant, fault: str) -> float:
    task, arguments, within = FAULTS[fault]
    await asyncio.to_thread(wait_until, plant.spare_ready)
    id = await plant.enqueue(task, *arguments)
    (began,) = await asyncio.to_thread(wait_until, lambda: plant.lines(id))
    since = began.at
    if fault == "kill -9":
        since = time.time()
        os.kill(began.pid, signal.SIGKILL)
    job = await plant.ended(id)
    _, again = plant.lines(id)
    assert job.state is State.SUCCEEDED
    assert (job.attempt, job.failures) == (2, 1 if fault in OVERRUNS else 0)
    (error,) = job.errors
    if fault in OVERRUNS:
        assert error.kind == "TimeoutError"
    else:
        assert error.kind == "WorkerLost"
        assert _evidence(fault) in error.message
        assert "last words of attempt 1" in (error.traceback or "") or fault == "kill -9"
    if fault == "SIGSTOP":
        assert "was stopped by a signal; its leases are not renewed until it goes on" in plant.said()
    if fault == "endless thread":  # its runner is replaced, and the thread ends with it
        await asyncio.to_thread(wait_until, lambda: not alive(began.pid))
    took = again.at - since
    assert took < within + SLACK
    return took


def _evidence(fault: str) -> str:
    return {"os._exit": "ended with exit code 3", "segfault": "SIGSEGV", "SIGSTOP": "stopped by a signal"}.get(
        fault, "SIGKILL"
    )
