"""Each safeguard is switched off in a copy of the sources, and the test that guards it has to fail then. A test that passes
without its safeguard proves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from tests.support.safeguards import SAFEGUARDS, Safeguard

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(240)
TESTS_FAILED = 1  # exit code of pytest; 2 to 5 say that no test was run
EVERY = 7  # one in so many is tried in every run; all of them with `./dev test -m slow tests/project/test_ablations.py`
CASES = [
    pytest.param(safeguard, id=str(safeguard), marks=[] if number % EVERY == 0 else pytest.mark.slow)
    for number, safeguard in enumerate(SAFEGUARDS)
]


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """A copy of the package to be spoilt."""
    copy = tmp_path_factory.mktemp("ablations") / "src"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(perdure.__file__).parent, copy / "perdure", ignore=ignored)
    return copy


@pytest.mark.parametrize("safeguard", CASES)
def test_without_its_safeguard_a_test_fails(safeguard: Safeguard, sources: Path):
    edits = [(safeguard.file, safeguard.text, safeguard.without), *safeguard.more]
    whole = {sources / "perdure" / name: (sources / "perdure" / name).read_text() for name, _, _ in edits}
    try:
        for name, text, without in edits:
            _replace(sources / "perdure" / name, text, without)
        run = _pytest(safeguard.test, sources)
    finally:
        for file, text in whole.items():
            file.write_text(text)
    assert run.returncode == TESTS_FAILED, f"{safeguard.test} did not fail:\n{run.stdout[-3000:]}{run.stderr[-1000:]}"
    assert "1 failed" in run.stdout or " failed," in run.stdout, run.stdout[-3000:]


def _replace(file: Path, text: str, without: str) -> None:
    whole = file.read_text()
    assert whole.count(text) == 1, f"{file} has not exactly one place that reads {text!r}"
    file.write_text(whole.replace(text, without))


def _pytest(test: str, sources: Path) -> subprocess.CompletedProcess[str]:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "90"]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": str(sources),
        "PYTHONPYCACHEPREFIX": str(sources.parent / "bytecode"),
    }
    command = [sys.executable, "-m", "pytest", *options, test]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
