"""What a handler tells the benchmark: that it was really called, with which job, and when."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from .payload import number_of

PATIENCE = 240.0
SETTLE_STEP = 0.002


class Probe:
    """Counts handler calls and marks each job's number; `finished` is set by the last expected call."""

    def __init__(self, expected: int, *, ready_file: Path | None = None) -> None:
        self.expected = expected
        self.finished = Event()
        self.first_call = 0.0
        self.all_stored = 0.0
        self._calls = itertools.count(1)
        self._seen = bytearray(expected)
        self._ready_file = ready_file

    def __call__(self, text: str) -> None:
        # next() on a count is one step under the interpreter lock, so handlers in threads are counted right.
        number = next(self._calls)
        if number == 1:
            self.begin()
        self.note(text)
        if number == self.expected:
            self.finished.set()

    def begin(self) -> None:
        """The first handler begins: the clock of a drain starts."""
        if not self.first_call:
            self.first_call = time.perf_counter()

    def note(self, text: str) -> None:
        self._seen[number_of(text)] = 1

    def ready(self) -> None:
        """The worker is up: whoever waits for it may send."""
        if self._ready_file is not None:
            self._ready_file.touch()

    def wait(self) -> None:
        self.finished.wait(PATIENCE)

    def stored(self) -> None:
        """The last completion is on record: the clock of a drain stops."""
        self.all_stored = time.perf_counter()

    def settle(self, completed: Callable[[], int | None]) -> None:
        """Wait for the last handler call, then until every completion is on record (None: nothing is kept)."""
        self.wait()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            count = completed()
            if count is None or count >= self.expected:
                break
            time.sleep(SETTLE_STEP)
        self.stored()

    def account(self) -> dict[str, float]:
        """Ends the count: how many calls there were, and of how many different jobs."""
        return {
            "calls": next(self._calls) - 1,
            "distinct": sum(self._seen),
            "seconds": self.all_stored - self.first_call,
        }


class DelayProbe(Probe):
    """Notes how long ago each payload was made; both processes read the same monotonic clock."""

    def __init__(self, expected: int, *, ready_file: Path | None = None) -> None:
        super().__init__(expected, ready_file=ready_file)
        self.delays: list[float] = []

    def note(self, text: str) -> None:
        self.delays.append((time.monotonic_ns() - number_of(text)) / 1e6)


class IdleProbe(Probe):
    """Expects nothing; somebody else sets `finished`."""

    def __init__(self) -> None:
        super().__init__(0)

    def __call__(self, text: str) -> None:
        self.begin()
