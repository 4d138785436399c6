"""Query plans: a list of jobs is updated job by job, and never by reading a whole table."""

import re
import sqlite3
from contextlib import closing
from importlib.util import find_spec

import pytest

from perdure.storage.sqlite.queries import load
from perdure.storage.sqlite.reading.records import RECORD, WHOLE

from .helpers import store_at

FILES = ("apply", "holds", "fast_success", "edges", "admit")
DRIVERS = ["sqlite3", *(["apsw"] if find_spec("apsw") else [])]


def updates_of_lists():
    for file in FILES:
        for name, text in load(file, record=RECORD, whole=WHOLE).items():
            if "{values}" in text and "UPDATE perdure_" in text:
                yield pytest.param(text, id=f"{file}-{name}")


def plan_of(driver, path, statement):
    """The steps of the plan for two rows, whatever the parameters are."""
    columns = len(re.search(r"input\s*\((.*?)\)", statement, re.DOTALL)[1].split(","))
    text = re.sub(
        r"\?\d*|:\w+", "NULL", statement.replace("{values}", ", ".join([f"({'NULL,' * (columns - 1)}NULL)"] * 2))
    )
    with closing(connected(driver, path)) as raw:
        return [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {text}")]


def connected(driver, path):
    if driver == "sqlite3":
        return sqlite3.connect(path)
    import apsw

    return apsw.Connection(str(path))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("statement", [*updates_of_lists()])
async def test_updating_a_list_of_jobs_reads_no_whole_table(tmp_path, statement, driver):
    async with store_at(tmp_path / "jobs.db"):
        pass
    steps = plan_of(driver, tmp_path / "jobs.db", statement)
    assert any(step.startswith("SEARCH perdure_") for step in steps), steps
    assert [step for step in steps if step.startswith("SCAN perdure_")] == []
