"""The import law: scripts/import_law.py finds what it should, and the law covers the modules it names."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAW = """
[tool.importlinter]
root_package = "house"
contract_types = ["knows: scripts.import_law.KnowsContract"]

[[tool.importlinter.contracts]]
name = "Rooms know the base"
type = "knows"
modules = ["house.room", "house.not_built_yet"]
may_import = ["house.base"]

[[tool.importlinter.contracts]]
name = "The porch knows the door"
type = "knows"
modules = ["house.porch"]
may_import = ["house"]
"""


@pytest.fixture
def house(tmp_path):
    """A package of a few modules under a small law, and a way to check it."""
    package = tmp_path / "house"
    (package / "room").mkdir(parents=True)
    for name in ["__init__", "base", "cellar", "porch", "room/__init__", "room/table"]:
        (package / f"{name}.py").touch()
    (tmp_path / "pyproject.toml").write_text(LAW)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")

    def check(module: str, text: str) -> tuple[int, str]:
        (package / f"{module}.py").write_text(text)
        linter = Path(sys.executable).with_name("lint-imports")
        linted = subprocess.run([linter, "--no-cache"], cwd=tmp_path, capture_output=True, text=True)
        return linted.returncode, linted.stdout + linted.stderr

    return check


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("room/table", "from house.base import anything\nimport house.room\n"),
        ("room/__init__", "import house.room.table\n"),
        ("porch", "import house\nfrom house import anything\n"),
        ("cellar", "import house.porch, house.room.table\n"),
    ],
)
def test_lawful_imports_pass(house, module, text):
    code, shown = house(module, text)
    assert code == 0, shown


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("room/table", "\nimport house.cellar\n", "house.room.table may not import house.cellar (line 2)"),
        ("room/__init__", "from house import cellar\n", "house.room may not import house.cellar (line 1)"),
        ("room/table", "import house\n", "house.room.table may not import house (line 1)"),
        ("porch", "from house import base\n", "house.porch may not import house.base (line 1)"),
    ],
)
def test_unlawful_imports_are_named(house, module, text, message):
    code, shown = house(module, text)
    assert code == 1
    assert message in shown


def test_each_module_stands_under_one_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    modules = [module for contract in contracts for module in contract["modules"]]
    assert len(modules) == len(set(modules))
