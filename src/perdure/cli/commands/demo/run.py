"""Run the demo: make a folder, run the chapters, stop in time, and leave no process behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from perdure import PerdureError

from ...root import DONE, FAILED, one_line
from .screen import Screen
from .worker_processes import Fleet, WorkerEnded

LAST_RESORT = 15.0  # seconds after the deadline for a tidy end


def show(jobs: int, keep: bool, deadline: float) -> int:
    """Run the demo and return the exit code."""
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    os.environ["PERDURE_URL"] = f"sqlite:///{folder / 'demo.db'}"
    os.environ["PERDURE_DEMO"] = str(folder)
    fleet = Fleet(folder)
    _end_by_force(deadline + LAST_RESORT, fleet)
    try:
        failure = _failure(screen, fleet, folder, jobs, deadline)
    finally:
        fleet.abandon()
    if failure is not None:
        screen.line()
        screen.check(False, failure)
        screen.say(f"What is left of it, with the workers' logs: {folder}")
        return FAILED
    if keep:
        _invite(screen, folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return DONE


def _failure(screen: Screen, fleet: Fleet, folder: Path, jobs: int, deadline: float) -> str | None:
    """Run the chapters and return what went wrong."""
    from .summary import Broken  # imports the tasks, which read the environment

    try:
        asyncio.run(_play(screen, fleet, folder, jobs, deadline))
    except (Broken, WorkerEnded, TimeoutError, PerdureError) as error:
        return one_line(error)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return "stopped from outside"
    return None


async def _play(screen: Screen, fleet: Fleet, folder: Path, jobs: int, deadline: float) -> None:
    from .chapters import Story

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    story = Story(screen, fleet, folder, jobs)
    try:
        async with asyncio.timeout(deadline):
            await story.run()
    except TimeoutError as error:
        raise TimeoutError(f"not done within {deadline:g} s, during: {story.doing}") from error


def _end_by_force(seconds: float, fleet: Fleet) -> None:
    """End the process if the deadline could not."""

    def end() -> None:
        time.sleep(seconds)
        fleet.abandon()
        os.write(2, b"\nperdure: the demo hangs and was ended\n")
        os._exit(FAILED)

    threading.Thread(target=end, daemon=True).start()


def _invite(screen: Screen, folder: Path) -> None:
    url = f"sqlite:///{folder / 'demo.db'}"
    screen.line()
    screen.say("Look around:")
    for command in ("jobs count --by-state", "dead list", "jobs list --task report", "doctor"):
        screen.say(f"  perdure {command} --url {url}")
