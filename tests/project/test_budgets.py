"""The budgets of the house: sizes of files, folders, stores and the engine, and private access across objects.

A rule that is not met yet has a ceiling: the figure of today. It may only go down. Whoever brings a figure down lowers its
ceiling with it, and takes it away when the goal is reached. `./dev figures` prints all figures.
"""

from __future__ import annotations

import pytest

from scripts.figures import LARGEST_FOLDER, LONGEST_FILE, ROOT, STORES, figures_of

FILES, FOLDERS = f"files over {LONGEST_FILE} lines", f"folders over {LARGEST_FOLDER} modules"
PRIVATE, FOREIGN = "private access across objects", "private names of drivers and of Python"
GOALS = {
    FILES: 0,
    FOLDERS: 0,
    PRIVATE: 80,
    FOREIGN: 0,
    "lines: engine": 18_000,
    **{f"lines: {store}": 5_000 for store in STORES},
    **{f"lines: {store}, SQL or Lua": 2_500 for store in ("sqlite", "postgres", "redis")},
}
CEILINGS = {
    FILES: 3,
    PRIVATE: 130,
    FOREIGN: 2,  # Python 3.11 has no public way to mark a function as async
    "lines: engine": 25_300,
    "lines: sqlite": 6_200,
    "lines: postgres": 6_700,
    "lines: mongo": 7_700,
    "lines: postgres, SQL or Lua": 2_850,
    "lines: redis, SQL or Lua": 4_350,
}
SLACK = 1.02  # how far a ceiling may lie above its figure


@pytest.fixture(scope="module")
def figures():
    return figures_of(ROOT)


@pytest.mark.parametrize("rule", GOALS)
def test_budget(figures, rule):
    figure, goal, ceiling = figures.table().get(rule, 0), GOALS[rule], CEILINGS.get(rule)
    named = {
        FILES: figures.long_files,
        FOLDERS: figures.large_folders,
        PRIVATE: figures.private_accesses,
        FOREIGN: figures.foreign_names,
    }
    over = "\n  ".join([f"{rule}: {figure:,}, the goal is {goal:,}", *(named.get(rule, []) if figure > goal else [])])
    print(over)
    assert figure <= max(goal, ceiling or 0), f"{over}\n{rule} became worse: {figure:,} instead of {ceiling or goal:,}"
    if ceiling is not None:
        assert figure > goal, f"the goal is reached: take {rule!r} out of CEILINGS"
        assert ceiling <= figure * SLACK, f"lower the ceiling of {rule!r} to {figure:,}"
