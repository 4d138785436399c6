"""How busy the machine is while a test runs, so that a judgement by the clock says something about Perdure.

A bound in seconds holds on a machine that has nothing else to do. Beside other programs everything takes longer, and the
test would judge them. So a thread measures, in the same time, how long a little work takes here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

PAUSE = 0.1  # seconds between two pieces of work
WORK = 0.005  # seconds of the processor


class Machine:
    """For judgements as `assert took < machine.seconds(3)`: three seconds, or what they became here."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="machine", daemon=True)
        self._worked = self._passed = self._late = 0.0

    def __enter__(self) -> Machine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seconds(self, idle: float) -> float:
        """What so many seconds of an idle machine may have become: slowed down as the work was, and the longest stall."""
        return idle * max(1.0, self._passed / max(self._worked, WORK)) + self._late

    def _measure(self) -> None:
        while not self._over.is_set():
            asked, began = time.monotonic(), time.thread_time()
            self._over.wait(PAUSE)
            woken = time.monotonic()
            while time.thread_time() - began < WORK:
                pass
            worked, passed = time.thread_time() - began, time.monotonic() - woken
            self._worked, self._passed = self._worked + worked, self._passed + passed
            self._late = max(self._late, woken - asked - PAUSE, passed - worked)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """The machine, from the beginning of the test."""
    with Machine() as machine:
        yield machine
