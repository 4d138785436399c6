"""Contenders that run in Node: their side of a measurement is child.mjs, with a `Queue` of their own from queue.mjs."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.contender import Contender, Mode, Way
from benchmarks.probe import Probe

CHILD = Path(__file__).parent / "child.mjs"


class NodeContender(Contender):
    """Everything runs in Node; the methods that would run here are never called."""

    # Where queue.mjs is, and where the packages of its package.json are installed.
    folder: ClassVar[Path]
    modules: ClassVar[Path]
    ways = frozenset({"single", "bulk", "concurrent"})
    modes = frozenset({"loop", "io"})
    blocking_handlers = False

    @classmethod
    def program(cls) -> Sequence[str]:
        return ("env", f"PERDURE_BENCH_MODULES={cls.modules}", "node", str(CHILD), str(cls.folder / "queue.mjs"))

    @classmethod
    def version(cls) -> str | None:
        described = cls.modules / "node_modules" / cls.distribution / "package.json"
        if shutil.which("node") is None or not described.exists():
            return None
        return str(json.loads(described.read_text())["version"])

    @classmethod
    def why_missing(cls) -> str:
        return "there is no Node" if shutil.which("node") is None else f"it is not installed in {cls.modules.name}"

    def enqueue(self, way: Way, texts: Sequence[str]) -> float:
        raise NotImplementedError

    def fill(self, texts: Sequence[str]) -> None:
        raise NotImplementedError

    def waiting(self) -> int:
        raise NotImplementedError

    def completed(self) -> int | None:
        raise NotImplementedError

    def work(self, probe: Probe, mode: Mode) -> None:
        raise NotImplementedError

    def send(self, gaps: Sequence[float]) -> None:
        raise NotImplementedError
