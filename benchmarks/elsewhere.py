"""Contenders that cannot share the suite's environment: a newer Python, or a driver of another version. They have one of
their own, whose Python runs their side of a measurement."""

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from .loop import LoopContender


class ElsewhereContender(LoopContender):
    python: ClassVar[Path]

    @classmethod
    def program(cls) -> Sequence[str]:
        return (str(cls.python), "-m", "benchmarks.child")

    @classmethod
    def version(cls) -> str | None:
        """Asked of its own Python; None where there is no such environment."""
        return _version(cls.python, cls.distribution)

    @classmethod
    def why_missing(cls) -> str:
        return f"{cls.distribution} is not installed in an environment of its own"


@cache
def _version(python: Path, distribution: str) -> str | None:
    question = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    try:
        told = subprocess.run(
            [python, "-c", question, distribution], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
