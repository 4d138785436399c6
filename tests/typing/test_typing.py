"""The API is typed: right uses pass mypy --strict, and mypy and basedpyright find every planted mistake.

`./dev lint` runs basedpyright over the right uses.
"""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

from .api_code import Code
from .api_stub import Stub

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RIGHT = ("right.py", "whole_api.py", "everything.py")
MISTAKES = HERE / "mistakes.py"


@pytest.fixture(scope="module")
def by_mypy() -> dict[str, dict[int, str]]:
    """What mypy says, by file and line. One run for all."""
    pytest.importorskip("mypy")
    files = [str(HERE / name) for name in (*RIGHT, MISTAKES.name)]
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
    errors: dict[str, dict[int, str]] = {name: {} for name in (*RIGHT, MISTAKES.name)}
    for path, line, words in re.findall(r"^(\S+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        errors.setdefault(Path(path).name, {})[int(line)] = words
    return errors


@pytest.fixture(scope="module")
def by_basedpyright() -> dict[int, str]:
    """What basedpyright says about the planted mistakes, by line, in the mode that editors use."""
    pytest.importorskip("basedpyright")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", str(MISTAKES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found if each["severity"] == "error"}


def planted(*marks: str) -> dict[int, str]:
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    return {number: line.strip() for number, line in lines if line.endswith(marks)}


@pytest.mark.parametrize("file", RIGHT)
def test_right_uses_pass(by_mypy, file):
    assert by_mypy[file] == {}


def test_mypy_finds_every_planted_mistake_and_nothing_else(by_mypy):
    mistakes, found = planted("# mistake", "# mypy: mistake"), by_mypy[MISTAKES.name]
    assert len(mistakes) > 50
    assert {number: line for number, line in mistakes.items() if number not in found} == {}
    assert {number: words for number, words in found.items() if number not in mistakes} == {}


def test_basedpyright_finds_every_planted_mistake_and_nothing_else(by_basedpyright):
    mistakes = planted("# mistake")
    assert len(mistakes) > 50
    assert {number: line for number, line in mistakes.items() if number not in by_basedpyright} == {}
    assert {number: words for number, words in by_basedpyright.items() if number not in mistakes} == {}


# Types that users do not name, but for those who write wrappers.
NEVER_NAMED = {
    *("CallOptions", "Clock", "Duration", "JobFilter", "JobId", "JobRef", "Middleware", "Node", "Routing"),
    *("TaskDefaults", "TaskOptions"),
}


def test_right_uses_name_the_whole_public_api():
    used = {name for file in RIGHT for name in _names_in(HERE / file)}
    stub = Stub(HERE / "api.pyi")
    built = stub.table().keys() & Code(perdure).table(stub).keys()
    public = {re.split(r"[\[(:]| -> ", key.rpartition("alias ")[2].removeprefix("constant "))[0] for key in built}
    unused = {name for name in public if (last := name.rpartition(".")[2]) not in used and not last.startswith("_")}
    assert unused == NEVER_NAMED


def _names_in(path):
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.keyword(arg=str(name)):
                yield name
