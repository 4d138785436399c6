"""What a handler tells the benchmark: that it was really called, with which job, and when."""

import itertools
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from .machine import worked
from .meter import Meter
from .payload import number_of

PATIENCE = 240.0
SETTLE_STEP = 0.002
SHARED_STEP = 0.005  # seconds between two looks at what all processes have done


class Probe:
    """Counts handler calls and marks each job's number; `finished` is set by the last expected call."""

    def __init__(
        self,
        expected: int,
        *,
        on_record: int | None = None,
        ready_file: Path | None = None,
        patience: float = PATIENCE,
        meter: Meter | None = None,
    ) -> None:
        self.expected = expected
        self.patience = patience
        self.finished = Event()
        self.first_call = 0.0
        self.all_stored = 0.0
        self._worked: list[tuple[float, float] | None] = [None, None]  # at the beginning and at the end
        self._calls = itertools.count(1)
        self._seen = bytearray(on_record or expected)
        self._ready_file = ready_file
        self._meter = meter

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
            self._worked[0] = worked()
            if self._meter is not None:
                self._meter.start()
            self.first_call = time.perf_counter()

    def note(self, text: str) -> None:
        self._seen[number_of(text)] = 1

    def ready(self) -> None:
        """The worker is up: whoever waits for it may send."""
        if self._ready_file is not None:
            self._ready_file.touch()

    def wait(self) -> None:
        self.finished.wait(self.patience)

    def stored(self) -> None:
        """The last completion is on record: the clock of a drain stops."""
        self.all_stored = time.perf_counter()
        if self._meter is not None:
            self._meter.stop()
        self._worked[1] = worked()

    def settle(self, completed: Callable[[], int | None]) -> None:
        """Wait for the last handler call, then until every completion is on record (None: nothing is kept)."""
        self.wait()
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            count = completed()
            if count is None or count >= self.expected:
                break
            time.sleep(SETTLE_STEP)
        self.stored()

    def account(self) -> dict[str, float | None]:
        """Ends the count: how many calls there were, and of how many different jobs."""
        return {
            "calls": next(self._calls) - 1,
            "distinct": sum(self._seen),
            "seconds": self.all_stored - self.first_call,
            "busy": self._busy(),
            **({} if self._meter is None else self._meter.account()),
        }

    def _busy(self) -> float | None:
        """The share of all cores that was at work meanwhile, whoever used it."""
        began, ended = self._worked
        if began is None or ended is None or ended[1] <= began[1]:
            return None
        return (ended[0] - began[0]) / (ended[1] - began[1])


class LongProbe(Probe):
    """Notes the instant after every so many calls, to see how a rate changes on the way."""

    def __init__(self, expected: int, *, window: int, on_record: int, patience: float) -> None:
        super().__init__(expected, on_record=on_record, patience=patience)
        self.instants: list[float] = []
        self._window = window
        self._noted = 0

    def note(self, text: str) -> None:
        super().note(text)
        self._noted += 1
        if self._noted % self._window == 0:
            self.instants.append(time.perf_counter())

    def seconds_per_window(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise([self.first_call, *self.instants])]


class SharedProbe(Probe):
    """One of several processes that drain together: each counts in memory that all of them see."""

    def __init__(self, expected: int, *, folder: Path, own: int, processes: int) -> None:
        super().__init__(expected)
        self._folder = folder
        self._own = own
        self._counts = _shared_counts(folder / "calls", processes)

    def note(self, text: str) -> None:
        super().note(text)
        self._counts[self._own] += 1

    def wait(self) -> None:
        deadline = time.monotonic() + self.patience
        while sum(self._counts) < self.expected and time.monotonic() < deadline:
            time.sleep(SHARED_STEP)
        self.finished.set()

    def account(self) -> dict[str, float | None]:
        (self._folder / f"seen-{self._own}").write_bytes(self._seen)
        return {**super().account(), "began": self.first_call, "ended": self.all_stored}


def _shared_counts(path: Path, processes: int) -> "memoryview[int]":
    """A number for each process, in a file that all of them have in their memory."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(file, 8 * processes)
        return memoryview(mmap.mmap(file, 8 * processes)).cast("q")
    finally:
        os.close(file)


class DelayProbe(Probe):
    """Notes how long ago each payload was made; both processes read the same monotonic clock."""

    def __init__(self, expected: int, *, ready_file: Path | None = None, meter: Meter | None = None) -> None:
        super().__init__(expected, ready_file=ready_file, meter=meter)
        self.delays: list[float] = []

    def note(self, text: str) -> None:
        self.delays.append((time.monotonic_ns() - number_of(text)) / 1e6)


class IdleProbe(Probe):
    """Expects nothing; somebody else sets `finished`."""

    def __init__(self) -> None:
        super().__init__(0)

    def __call__(self, text: str) -> None:
        self.begin()
