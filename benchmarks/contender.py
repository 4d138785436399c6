"""What a suite needs from a queue to measure it. Class attributes are read without importing the queue's package."""

import importlib
import importlib.util
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import ClassVar, Literal

from .meter import Meter
from .payload import payload
from .probe import Probe

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (sys.executable, "-m", "benchmarks.child")

Way = Literal["single", "bulk", "concurrent"]
Mode = Literal["loop", "threads", "io"]

BULK = 5_000  # jobs in a list
WIDTH = 64
SLOTS = 50
IO_SECONDS = 0.01
POLL_SECONDS = 0.001


@dataclass(frozen=True)
class Durability:
    """What a figure was bought with."""

    writes: str
    power_loss: str
    worker_killed: str
    keeps: str


class Contender(ABC):
    """One queue on one fresh place. Each method runs in a process of its own."""

    key: ClassVar[str]
    title: ClassVar[str]
    module: ClassVar[str]
    distribution: ClassVar[str]
    durability: ClassVar[Durability]
    settings: ClassVar[str]
    ours: ClassVar[bool] = False
    ways: ClassVar[frozenset[Way]] = frozenset({"single", "concurrent"})
    modes: ClassVar[frozenset[Mode]] = frozenset({"loop"})
    # Handlers are always blocking functions: the plain drain is also the figure for sync handlers.
    blocking_handlers: ClassVar[bool] = True
    # Slow contenders drain fewer jobs, in their favour: none gets faster with a longer backlog, some get much slower.
    share: ClassVar[float] = 1.0
    # Fast enough for the measures of hundreds of thousands of jobs.
    long_runs: ClassVar[bool] = False
    # How many jobs may run at once, by the queue's own limit; only Perdure is asked for it.
    limit: int | None = None

    def __init__(self, place: Path) -> None:
        self.place = place
        self.meter = Meter(place)

    @classmethod
    def version(cls) -> str | None:
        """The installed version, None when it cannot be imported."""
        try:
            spec = importlib.util.find_spec(cls.module)
        except ModuleNotFoundError:
            return None
        if spec is None or spec.origin is None:
            return None
        try:
            return metadata.version(cls.distribution)
        except metadata.PackageNotFoundError:
            return "from source"

    @classmethod
    def why_missing(cls) -> str:
        """What to say of a contender that has no version."""
        return f"{cls.distribution} is not installed"

    @classmethod
    def program(cls) -> Sequence[str]:
        """What runs one measurement of this contender: given a specification in JSON, it writes its result to a file."""
        return PYTHON

    @classmethod
    def observed(cls, place: Path) -> dict[str, float]:
        """What the parent can see of a place after a drain and the goals want to know."""
        return {}

    def prepare(self) -> None:
        """Make what the queue keeps its jobs in, where that is a step of its own."""
        return

    def warm_up(self) -> None:
        """Import what a worker needs."""
        importlib.import_module(self.module)

    @abstractmethod
    def enqueue(self, way: Way, texts: Sequence[str]) -> float:
        """Seconds to put all on record, after one job of warm-up that opens the store."""

    @abstractmethod
    def fill(self, texts: Sequence[str]) -> None:
        """Put all on record in the fastest way there is."""

    @abstractmethod
    def waiting(self) -> int:
        """Jobs on record that nobody has taken."""

    @abstractmethod
    def completed(self) -> int | None:
        """Completions on record, None when the queue keeps none."""

    @abstractmethod
    def work(self, probe: Probe, mode: Mode) -> None:
        """Run one worker until the probe has what it wants and the completions are on record."""

    @abstractmethod
    def send(self, gaps: Sequence[float]) -> None:
        """Enqueue one job after each gap; its payload carries the instant just before the call."""


class BlockingContender(Contender):
    """A queue with a blocking `put`; most peers are."""

    @abstractmethod
    def put(self, text: str) -> None: ...

    def put_many(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.put(text)

    def enqueue(self, way: Way, texts: Sequence[str]) -> float:
        self.put(payload(0))
        self.meter.start()
        match way:
            case "single":
                for text in texts:
                    self.put(text)
            case "bulk":
                self.fill(texts)
            case "concurrent":
                in_threads(self.put, texts)
        self.meter.stop()
        return self.meter.seconds

    def fill(self, texts: Sequence[str]) -> None:
        for chunk in chunks(texts, BULK):
            self.put_many(chunk)

    def send(self, gaps: Sequence[float]) -> None:
        for gap in gaps:
            time.sleep(gap)
            self.put(payload(time.monotonic_ns()))


def blocking_handler(probe: Probe, mode: Mode) -> Callable[[str], None]:
    """What a job does in a thread: nothing, or ten milliseconds of waiting."""

    def io(text: str) -> None:
        probe.begin()
        time.sleep(IO_SECONDS)
        probe(text)

    return io if mode == "io" else probe


def gaps(count: int, seed: int) -> list[float]:
    """Seconds before each of so many jobs that come to an idle worker, the same for the same seed."""
    draw = random.Random(seed)
    return [draw.uniform(0.005, 0.04) for _ in range(count)]


def chunks(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def in_threads(put: Callable[[str], object], texts: Sequence[str], width: int = WIDTH) -> None:
    """Every thread puts its own slice: no executor between the queue and its callers."""
    errors: list[BaseException] = []

    def run(own: Sequence[str]) -> None:
        try:
            for text in own:
                put(text)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=run, args=(texts[start::width],)) for start in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
