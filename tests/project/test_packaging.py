"""What a user sees of the package: its extras, its links, and the hint at what is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from perdure.cli.commands.demo.summary import READ_NEXT
from perdure.storage.install_hint import install_command

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = f"{PROJECT['urls']['Homepage']}/blob/main/"
MODULES = {"psycopg": "psycopg", "redis": "redis", "pymongo": "pymongo", "apsw": "apsw", "rich": "rich"}


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_extra_has_code_behind_it(extra):
    packages = [re.split(r"[\[<>=]", each)[0] for each in PROJECT["optional-dependencies"][extra]]
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for package in packages:
        assert re.search(rf"^\s*(import|from) {MODULES[package]}\b", sources, re.MULTILINE)


def test_the_readme_has_absolute_links_to_files_that_are_there():
    """A package index shows the README on a page of its own, where a relative link leads nowhere."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text("utf-8"))
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link.removeprefix(PAGES) for link in links if link.startswith(PAGES)]
    assert [link for link in ours if not (ROOT / link).is_file()] == []


def test_the_demo_and_the_project_point_to_files_that_are_there():
    for url in (READ_NEXT, PROJECT["urls"]["Documentation"], PROJECT["urls"]["Changelog"]):
        assert (ROOT / url.removeprefix(PAGES)).is_file(), url


# ---- hints -----------------------------------------------------------------------------------------
CLONE = {"url": "file:///home/ada/per%20dure", "dir_info": {"editable": True}}
FOLDER = {"url": "file:///home/ada/perdure", "dir_info": {}}
GIT = {"url": "https://example.org/perdure.git", "vcs_info": {"vcs": "git", "commit_id": "1"}}


@pytest.mark.parametrize(
    ("installer", "origin", "beside", "command"),
    [
        ("pip", None, (), "pip install 'perdure[postgres]'"),
        ("", None, (), "pip install 'perdure[postgres]'"),
        ("pip", CLONE, (), "pip install -e '/home/ada/per dure[postgres]'"),
        ("pip", FOLDER, (), "pip install '/home/ada/perdure[postgres]'"),
        ("pip", GIT, (), "pip install 'perdure[postgres] @ git+https://example.org/perdure.git'"),
        ("uv", None, (), "uv pip install 'perdure[postgres]'"),
        ("uv", CLONE, (), "uv pip install -e '/home/ada/per dure[postgres]'"),
        ("uv", None, ("uv.lock",), "uv add 'perdure[postgres]'"),
        ("uv", CLONE, ("uv.lock",), "uv add --editable '/home/ada/per dure[postgres]'"),
        ("uv", None, ("venv/uv-receipt.toml",), "uv tool install 'perdure[postgres]'"),
        ("pip", None, ("venv/pipx_metadata.json",), "pipx install --force 'perdure[postgres]'"),
        ("uv", None, ("venv/pipx_metadata.json",), "pipx install --force 'perdure[postgres]'"),
        ("Poetry 2.1.0", None, (), "poetry add 'perdure[postgres]'"),
    ],
)
def test_a_hint_fits_the_way_of_installing(tmp_path, installer, origin, beside, command):
    info = tmp_path / "perdure-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: perdure\nVersion: 0.1.0\n")
    if installer:
        (info / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    (tmp_path / "venv").mkdir()
    for name in beside:
        (tmp_path / name).touch()
    assert install_command("postgres", installed=PathDistribution(info), prefix=tmp_path / "venv") == command


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql://localhost/jobs", "psycopg", "postgres"),
        ("redis://localhost", "redis", "redis"),
        ("mongodb://localhost/jobs", "pymongo", "mongo"),
        ("sqlite+apsw:///jobs.db", "apsw", "apsw"),
    ],
)
def test_a_missing_library_is_named_with_the_command_for_this_installation(tmp_path, url, module, extra):
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from perdure import Perdure, StoreError\n"
        f"try: Perdure({url!r}).jobs.sync.count()\n"
        "except StoreError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert install_command(extra) in told.stdout, told.stderr
