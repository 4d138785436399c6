"""The comparison of schemas in a short form: every design hands out each job once and keeps what it says it keeps."""

import asyncio
import json

import pytest

from benchmarks.designs.__main__ import main
from benchmarks.designs.catalogue import DESIGNS, design_named
from benchmarks.designs.client import Client, HandedOutWrongly
from benchmarks.designs.database import fresh
from benchmarks.designs.report import BEGIN, END, report, written_into
from benchmarks.designs.results import Results
from benchmarks.designs.run import Plan, run
from benchmarks.designs.scenarios import churn, drain
from tests.support.real_servers import server

TINY = Plan(churned=3_000, waiting=600, drained=300, rounds=1, sizes=((100, 2),), long=(100, 2))


@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design.name)
def test_every_design_hands_out_each_job_once(design):
    drained = drain(server("postgres"), design, jobs=600, batch=100, in_flight=3)  # raises when one is lost or doubled
    assert drained.rate > 0
    assert drained.wal > 100  # bytes a job: it was written down


def test_under_a_held_snapshot_the_mark_spares_a_claim_the_dead_rows():
    plain, marked = (
        churn(server("postgres"), design_named(name), jobs=4_000, batch=100, in_flight=2, held=True)
        for name in ("narrow", "narrow-mark")
    )
    assert plain.rot.dead >= 2_000
    assert marked.reads < plain.reads / 2


def test_a_job_that_is_handed_out_twice_is_noticed():
    with fresh(server("postgres"), design_named("narrow"), tuned=True, batch=100) as database:
        client = Client(database, design_named("narrow"), jobs=300, batch=100)
        asyncio.run(client.enqueue())
        asyncio.run(client.enqueue())
        client.got = -300
        asyncio.run(client.drain(1))
        with pytest.raises(HandedOutWrongly, match="300 handed out twice"):
            client.check()


def test_the_whole_comparison_ends_in_tables(tmp_path, capsys):
    results = Results(["a machine"], "a server")
    run(server("postgres"), [design_named("narrow-mark"), design_named("in-place")], TINY, results, lambda line: None)
    results.save(tmp_path / "figures.json")
    assert main(["--load", str(tmp_path / "figures.json")]) == 0
    page = capsys.readouterr().out
    headings = (
        "Drain",
        "Drain, cost",
        "What a job costs",
        "Churn",
        "Churn with tuned storage",
        "Churn under a held snapshot",
        "Backlog",
    )
    assert [heading for heading in headings if f"### {heading}\n" not in page] == []
    assert page.count("| narrow, low-water mark") == len(headings) + 1  # two backlogs
    assert len(json.loads((tmp_path / "figures.json").read_text())["measurements"]) == 12


@pytest.mark.parametrize(("load", "disturbed"), [(0.5, False), (100.0, True)])
def test_a_run_on_a_busy_machine_says_so(load, disturbed):
    assert ("disturbed" in report(Results(["a machine"], "a server", [], [load]))) is disturbed


def test_tables_are_written_between_the_marks_of_a_page():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert written_into(page, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(SystemExit, match="no marks"):
        written_into("nothing\n", "new\n")
