"""Statements bind values in the two ways that every version of Python takes: `?` from a sequence, `:name` from a mapping.

Python 3.12 warns when a numbered placeholder (`?1`) or a named one is bound from a sequence; a later version refuses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import perdure.storage.sqlite

FOLDER = Path(perdure.storage.sqlite.__file__).parent
SOURCES = sorted(path for kind in ("*.py", "*.sql") for path in FOLDER.rglob(kind))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_placeholder_has_a_number(path):
    code = [line for line in path.read_text("utf-8").splitlines() if "(`?1`)" not in line]
    assert not re.findall(r"\?\d", "\n".join(code))


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.sql")), ids=lambda path: path.name)
def test_no_statement_mixes_names_and_question_marks(path):
    for statement in path.read_text("utf-8").split("-- name: "):
        lines = [line for line in statement.splitlines() if not line.startswith("--")]
        code = re.sub(r"'[^']*'", "", "\n".join(lines[1:]))
        assert not (re.search(r"[^:]:[a-z]", code) and ("?" in code or "{values}" in code)), statement
