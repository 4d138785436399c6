"""The repository itself: the dev script, the locked requirements, and what must not stand in any file."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKED = sorted((ROOT / "requirements").glob("*.txt"))
COMMANDS = [
    "setup",
    "demo",
    "test",
    "lint",
    "bench",
    "faults",
    "kills",
    "fuzz",
    "server",
    "sql",
    "figures",
    "docs",
    "lock",
    "help",
]

# Put together from pieces, so that this file does not contain what it looks for.
REGISTRIES = [
    "files.python" + "hosted",
    "py" + "pi.org/simple",
    "test.py" + "pi.org",
    "--index" + "-url",
    "--find" + "-links",
]
MACHINE_PATHS = re.compile(
    r"(?<![\w.~-])/(?:" + "|".join(["ro" + "ot", "wo" + "rk", "opt/py" + "pi", "opt/wh" + "eels"]) + r")/"
)


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "dev", *arguments], capture_output=True, text=True, timeout=60)


def test_help_lists_every_command():
    shown = dev("help")
    assert shown.returncode == 0
    listed = re.findall(r"^  (\w+)", shown.stdout, re.MULTILINE)
    assert list(dict.fromkeys(listed)) == COMMANDS


def test_no_command_shows_the_help():
    assert dev().stdout == dev("help").stdout


def test_unknown_command_exits_2_with_help():
    shown = dev("tset")
    assert shown.returncode == 2
    assert "unknown command: tset" in shown.stderr
    assert "usage: ./dev" in shown.stderr
    assert shown.stdout == ""


@pytest.mark.parametrize("shell", [shell for shell in ["sh", "dash", "bash", "ksh"] if shutil.which(shell)])
@pytest.mark.parametrize("script", ["dev", ".ci/run"])
def test_scripts_parse(shell, script):
    parsed = subprocess.run([shell, "-n", ROOT / script], capture_output=True, text=True)
    assert (parsed.returncode, parsed.stderr) == (0, "")


@pytest.mark.parametrize("script", ["dev", ".ci/run"])
def test_scripts_are_executable(script):
    assert (ROOT / script).stat().st_mode & 0o111


def test_a_machine_without_python_is_told_so_in_words(tmp_path):
    shutil.copy(ROOT / "dev", tmp_path / "dev")
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ["dirname", "cat", "cksum", "mkdir", "rm", "sh"]:
        (tools / tool).symlink_to(shutil.which(tool))
    refused = subprocess.run(
        [tools / "sh", tmp_path / "dev", "setup"], env={"PATH": str(tools)}, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "Python 3.11 or newer is needed" in refused.stderr


def test_a_python_that_is_asked_for_and_missing_is_told_so_in_words(tmp_path):
    shutil.copy(ROOT / "dev", tmp_path / "dev")
    asked = {**os.environ, "PERDURE_PYTHON": "3.1"}
    refused = subprocess.run([tmp_path / "dev", "setup"], env=asked, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "PERDURE_PYTHON=3.1 names no Python 3.11 or newer" in refused.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("named", ["path", "version"])
def test_a_python_that_is_asked_for_gets_an_environment_of_its_own(tmp_path, named):
    """The script makes it with that Python; what it would install afterwards is refused by a tool that says so."""
    shutil.copy(ROOT / "dev", tmp_path / "dev")
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    tools, version = tmp_path / "bin", f"{sys.version_info[0]}.{sys.version_info[1]}"
    tools.mkdir()
    (tools / f"python{version}").symlink_to(sys.executable)
    (tools / "uv").write_text('#!/bin/sh\necho "uv $*" >&2\nexit 1\n')
    (tools / "uv").chmod(0o755)
    asked = {"PERDURE_PYTHON": sys.executable if named == "path" else version, "PATH": f"{tools}:{os.environ['PATH']}"}
    shown = subprocess.run(
        [tmp_path / "dev", "setup"], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert f"making .venv-python{version} with" in shown.stdout
    assert re.search(rf"uv venv --quiet --python \S+ .venv-python{version}", shown.stderr)


def tracked_files() -> list[Path]:
    git = shutil.which("git")
    if not git or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run([git, "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_registry_or_a_path_of_one_machine():
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        hits = [host for host in REGISTRIES if host in text] + MACHINE_PATHS.findall(text)
        found += [f"{path.relative_to(ROOT)}: {hit}" for hit in hits]
    assert found == []


def test_there_is_no_uv_lock():
    assert "uv.lock" not in [path.name for path in tracked_files()]


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.name)
def test_every_locked_requirement_is_pinned_and_hashed(path):
    entries = locked_entries(path)
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==[^ ;]+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"no hash: {entry[:80]}"


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.name)
def test_the_lock_holds_what_its_source_asks_for(path):
    locked = {re.split(r"[=\[]", entry)[0] for entry in locked_entries(path)}
    asked = re.findall(r"^([a-z0-9][a-z0-9-]*)", path.with_suffix(".in").read_text(), re.MULTILINE)
    assert asked
    assert {name for name in asked if name not in locked} == set()


def test_core_requirements_are_the_dependencies_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = [line for line in (ROOT / "requirements/core.in").read_text().splitlines() if not line.startswith("#")]
    assert core == project["dependencies"]


def locked_entries(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    return [entry for entry in "\n".join(lines).replace("\\\n", " ").splitlines() if entry.strip()]
