"""What a worker shows of a crash: how it ended and the lines of the user's code, not the frames of its own threads."""

from __future__ import annotations

import asyncio
import os

import pytest

from perdure import State
from perdure.worker.health import crash_dump
from perdure.worker.health.crash_dump import DumpFilter
from tests.support.addresses import address
from tests.support.plant import Plant
from tests.support.waiting import wait_until

FAR_CRASH = """

@app.task(run_in="process", max_attempts=1)
def far_crash() -> None:
    ctypes.string_at(0)
"""
OURS = os.path.dirname(os.path.dirname(crash_dump.__file__))
LIBRARY = os.path.dirname(asyncio.__file__)
DUMP = f"""Fatal Python error: Segmentation fault

Current thread 0x0000000000000001 (most recent call first):
  File "{os.path.dirname(LIBRARY)}/ctypes/__init__.py", line 519 in string_at
  File "/srv/shop/tasks.py", line 12 in charge
  File "{OURS}/worker/calling.py", line 90 in call
  File "{os.path.dirname(LIBRARY)}/threading.py", line 982 in run

Thread 0x0000000000000002 (most recent call first):
  File "{OURS}/worker/threads.py", line 30 in _wait
  File "{os.path.dirname(LIBRARY)}/threading.py", line 982 in run

Extension modules: msgspec._core (total: 1)
"""
SHORT = f"""Fatal Python error: Segmentation fault
Current thread 0x0000000000000001 (most recent call first):
  File "{os.path.dirname(LIBRARY)}/ctypes/__init__.py", line 519 in string_at
  File "/srv/shop/tasks.py", line 12 in charge
"""


@pytest.fixture
def plant(tmp_path):
    plant = Plant(tmp_path, address("sqlite", tmp_path), FAR_CRASH)
    yield plant
    plant.stop()


def frames(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("  File ")]


@pytest.mark.parametrize(("task", "arguments"), [("dies", ["segfault", 1]), ("far_crash", [])])
async def test_a_crash_shows_the_users_frames_only(plant, task, arguments):
    plant.start("--spares", "0")
    async with plant.app:
        job = await plant.ended(await plant.enqueue(task, *arguments))
    said = await asyncio.to_thread(wait_until, lambda: "Fatal Python error" in plant.said() and plant.said())
    assert said.count("Fatal Python error: Segmentation fault") == 1
    assert [line.rpartition(" in ")[2] for line in frames(said)] == ["string_at", task]
    evidence = job.errors[0].traceback
    assert [line.rpartition(" in ")[2] for line in frames(evidence)] == ["string_at", task]
    if task == "dies":
        assert job.state is State.SUCCEEDED
        assert said.index("last words of attempt 1") < said.index("Fatal Python error")


async def test_a_kill_for_a_timeout_shows_the_users_frames_only(plant):
    plant.start("--spares", "0")
    async with plant.app:
        await plant.ended(await plant.enqueue("overruns", "sleep"))
    assert [line.rpartition(" in ")[2] for line in frames(plant.said())] == ["overruns"]


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("after", ["", "the next line\n", "no end of line"])
def test_a_dump_is_shortened_however_it_comes_in(size, after):
    written = f"before\n{DUMP}{after}".encode()
    filter = DumpFilter()
    passed = b"".join(filter.feed(written[start : start + size]) for start in range(0, len(written), size))
    assert (passed + filter.end()).decode() == f"before\n{SHORT}{after}"


def test_what_is_no_crash_is_passed_on_at_once():
    filter = DumpFilter()
    assert filter.feed(b"loading 10 %") == b"loading 10 %"
    assert filter.feed(b"\rloading 20 %") == b"\rloading 20 %"
    asked_for = b'\nThread 0x1 (most recent call first):\n  File "x.py", line 1 in f\n'
    assert filter.feed(asked_for) + filter.end() == asked_for, "their user asked for it"


def test_a_crash_outside_the_users_code_shows_where():
    filter = DumpFilter()
    ours = "".join(line for line in DUMP.splitlines(keepends=True) if "/srv/shop" not in line)
    shown = (filter.feed(ours.encode()) + filter.end()).decode()
    assert len(frames(shown)) == 3
    assert "threads.py" not in shown
