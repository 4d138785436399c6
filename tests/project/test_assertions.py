"""Assertions that can never fail prove nothing. This finds the ones that can be told by their form alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/perdure/testing/**/*.py")])
ALWAYS_TRUE = ast.GeneratorExp | ast.Lambda | ast.Tuple | ast.JoinedStr


def test_every_assertion_can_fail():
    assert len(FILES) > 200
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        for node in empty_assertions(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "empty"),
    [
        ("assert len(jobs) >= 0", True),
        ("assert all(value >= 0 for value in values)", True),
        ("assert (job.state is DEAD for job in jobs)", True),
        ("assert 'dead'", True),
        ("assert lambda: False", True),
        ("assert state == DEAD or True", True),
        ("assert 0 <= age < 60", False),
        ("assert least >= 1", False),
        ("assert all(job.done for job in jobs)", False),
    ],
)
def test_what_is_found(line, empty):
    assert bool(list(empty_assertions(ast.parse(line)))) is empty


def empty_assertions(tree: ast.AST) -> Iterator[ast.Assert]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and (_is_true(node.test) or any(map(_is_no_bound, ast.walk(node.test)))):
            yield node


def _is_true(part: ast.AST) -> bool:
    if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.Or):
        return any(map(_is_true, part.values))
    return isinstance(part, ALWAYS_TRUE) or (isinstance(part, ast.Constant) and bool(part.value))


def _is_no_bound(part: ast.AST) -> bool:
    """`>= 0` alone: what is counted or measured is never less."""
    if not isinstance(part, ast.Compare) or [type(each) for each in part.ops] != [ast.GtE]:
        return False
    (bound,) = part.comparators
    return isinstance(bound, ast.Constant) and bound.value == 0
