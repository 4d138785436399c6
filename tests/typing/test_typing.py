"""The API is typed: right uses pass mypy --strict, and every planted mistake is found."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def found() -> dict[str, dict[int, str]]:
    """What mypy says, by file and line. One run for all."""
    pytest.importorskip("mypy")
    files = [str(HERE / name) for name in ("right.py", "everything.py", "mistakes.py")]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--hide-error-context",
        "--follow-imports=silent",
    ]
    done = subprocess.run([*command, *files], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors: dict[str, dict[int, str]] = {"right.py": {}, "everything.py": {}, "mistakes.py": {}}
    for path, line, words in re.findall(r"^(\S+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        errors.setdefault(Path(path).name, {})[int(line)] = words
    return errors


def test_right_uses_pass(found):
    assert found["right.py"] == {}
    assert found["everything.py"] == {}


def test_every_planted_mistake_is_found_and_nothing_else(found):
    lines = (HERE / "mistakes.py").read_text().splitlines()
    planted = {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}
    assert len(planted) > 50
    missed = {number: lines[number - 1].strip() for number in planted - found["mistakes.py"].keys()}
    assert missed == {}
    invented = {number: words for number, words in found["mistakes.py"].items() if number not in planted}
    assert invented == {}
