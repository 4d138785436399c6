"""Starts the processes of a measurement, each on a place of its own that is gone afterwards."""

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .contender import PYTHON, ROOT, Contender
from .suite import FreshPlace, Suite, fresh_folder

TIME_LIMIT = 600.0
START_LIMIT = 30.0


class Failed(Exception):
    """A child did not do what it was asked; the message says what it said."""


class Child:
    """One running `benchmarks.child`."""

    def __init__(
        self, program: Sequence[str], place: Path, spec: dict[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = f"{spec.get('contender', 'raw')} {spec['verb']}"
        handle = tempfile.mkdtemp(dir=place)
        self._result = Path(handle, "result.json")
        self._errors = Path(handle, "errors.txt")
        argument = json.dumps({**spec, "place": str(place), "result": str(self._result)})
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*program, argument],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def result(self) -> dict[str, Any]:
        try:
            self._process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self._name}: not done after {TIME_LIMIT:.0f} s") from None
        if self._process.returncode or not self._result.exists():
            raise Failed(f"{self._name}: {self._last_words()}")
        content: dict[str, Any] = json.loads(self._result.read_text())
        return content

    def wait_for(self, file: Path) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise Failed(f"{self._name}: did not start: {self._last_words()}")
            time.sleep(0.01)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


class Spawner:
    """Starts children of one suite, in this process's environment unless another one is given."""

    def __init__(
        self,
        suite: Suite,
        fresh_place: FreshPlace = fresh_folder,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._suite = suite
        self._fresh_place = fresh_place
        self._environment = environment

    def fresh_place(self) -> AbstractContextManager[Path]:
        return self._fresh_place()

    def written(self, place: Path) -> float | None:
        return None if self._suite.written is None else self._suite.written(place)

    def start(self, place: Path, contender: type[Contender], verb: str, **options: Any) -> Child:
        spec = {"suite": self._suite.name, "contender": contender.key, "verb": verb, **options}
        return Child(contender.program(), place, spec, self._environment)

    def run(self, place: Path, contender: type[Contender], verb: str, **options: Any) -> dict[str, Any]:
        child = self.start(place, contender, verb, **options)
        try:
            return child.result()
        finally:
            child.kill()

    def raw(self, label: str, jobs: int) -> float:
        """The rate of a raw limit, in a place of its own."""
        spec = {"suite": self._suite.name, "verb": "raw", "raw": label, "jobs": jobs}
        with self.fresh_place() as place:
            return float(Child(PYTHON, place, spec).result()["rate"])
