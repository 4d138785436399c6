"""The pages about the code name files, functions and classes of it: what they name must exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from .pages import ROOT, name_of

SOURCE = ROOT / "src" / "perdure"
PAGES = [*sorted((ROOT / "docs" / "internals").glob("*.md")), ROOT / "docs" / "glossary.md"]
# `storage/sqlite/claiming/claim.py`, `storage/*/claim.py`, `core/lifecycle.py::decide`, `worker/health/`
_PATH = re.compile(r"`((?:[\w.*-]+/)*[\w.*-]+\.(?:py|sql|lua|json)|(?:[\w.*-]+/)+)(?:::([\w.]+))?`")
_CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)(?:\.\w+)?(?:\([^`]*\))?`")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_NOT_OURS = {"AccessShare", "RowExclusive", "NoSuchTransaction", "GeneratorExit", "KeyboardInterrupt", "TaskGroup"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_files_exist(page: Path) -> None:
    assert [path for path, _ in _PATH.findall(_prose(page)) if not _files(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_functions_and_classes_exist(page: Path) -> None:
    named = [(path, name) for path, name in _PATH.findall(_prose(page)) if name]
    assert [f"{path}::{name}" for path, name in named if not any(_defines(file, name) for file in _files(path))] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_class_names_are_words_of_the_code(page: Path) -> None:
    assert sorted({*_CLASS.findall(_prose(page))} - _words() - _NOT_OURS) == []


def test_a_name_that_is_gone_is_found() -> None:
    assert _files("core/lifecycle.py") == [SOURCE / "core/lifecycle.py"]
    assert _files("core/gone.py") == []
    assert _defines(SOURCE / "storage/contract.py", "Storage.exchange")
    assert not _defines(SOURCE / "storage/contract.py", "Storage.gone")


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text("utf-8"))


def _files(path: str) -> list[Path]:
    """The files and folders that a path means: below the package, or below the repository for tests and tools."""
    return [*SOURCE.glob(path)] or [*ROOT.glob(path)]


def _defines(file: Path, dotted: str) -> bool:
    """Whether a module has this name, or a class of it this method or field."""
    body: list[ast.stmt] = _tree(file).body
    for name in dotted.split("."):
        found = next((node for node in body if name in _bound_by(node)), None)
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return True


def _bound_by(node: ast.stmt) -> Iterable[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return (name,)
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            return ()


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def _words() -> frozenset[str]:
    return frozenset(word for file in SOURCE.rglob("*.py") for word in re.findall(r"\w+", file.read_text("utf-8")))
