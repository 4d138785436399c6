"""The figures of the code: what `./dev figures` counts in a small package, and the command itself."""

import os
import subprocess
import sys

import pytest

from scripts.figures import PACKAGE, ROOT, block_of, figures_of

STORE = """
from redis._parsers import hidden
import perdure._sync

class Store:
    def __init__(self, client):
        self._client = client

    def claimed(self):
        self._client._send()
        return self._ours, other._client

    def paused(self) -> bool:
        return True

    @property
    def opened(self):
        return self.settings._replace(a=1)

    def need(self):
        pass

async def _told():
    pass
"""


@pytest.fixture
def figures(tmp_path):
    package = tmp_path / PACKAGE
    folder = package / "storage" / "redis"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / "store.py").write_text(STORE)
    (folder / "claim.lua").write_text("-- a line\n" * 401)
    for number in range(16):
        (package / "storage" / f"module{number}.py").write_text("a = 1\n")
    return figures_of(tmp_path)


def _names(lines):
    return {line.split()[-1] for line in lines}


def test_sizes(figures):
    assert figures.top_modules == ["__init__.py"]
    assert figures.long_files == ["storage/redis/claim.lua: 401"]
    assert figures.large_folders == ["storage: 16"]
    assert (figures.lines["engine"], figures.lines["redis, SQL or Lua"]) == (16, 401)
    assert figures.lines["redis"] == figures.lines["all Python"] - 16 == STORE.count("\n")


def test_names(figures):
    assert _names(figures.participles) == {"_told", "claimed"}


def test_private_access(figures):
    assert _names(figures.private_accesses) == {"other._client", "self._client._send"}
    assert _names(figures.foreign_names) == {"self._ours", "self._client._send", "redis._parsers.hidden"}


@pytest.mark.parametrize(
    ("path", "block"),
    [
        ("storage/sqlite/claiming/claim.py", "sqlite"),
        ("storage/rules/guards.py", "engine"),
        ("storage/contract.py", "engine"),
        ("app.py", "engine"),
        ("cli/root.py", "cli"),
        ("testing/clock.py", "testing"),
    ],
)
def test_blocks(path, block):
    assert block_of(path) == block


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="there is no commit to compare with")
def test_a_commit_stands_beside_the_working_tree():
    done = subprocess.run(
        [sys.executable, "scripts/figures.py", "HEAD"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    head, *rows = done.stdout.splitlines()
    assert head.split("  ")[-2:] == ["HEAD", "the working tree"]
    assert any(row.startswith("lines: engine ") and len(row.split()) == 4 for row in rows)
