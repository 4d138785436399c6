"""A short form of the benchmark: does every contender that is here really run, and is the account whole?"""

import json
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import servers
from benchmarks.contender import PYTHON, ROOT
from benchmarks.measures import MEASURES, Plan, measures_for
from benchmarks.payload import payload
from benchmarks.probe import SharedProbe
from benchmarks.registry import SUITES, suite_named
from benchmarks.results import FIGURES, Results
from benchmarks.run import run
from benchmarks.spawn import Failed, Spawner
from benchmarks.tables import table
from tests.support import real_servers

pytestmark = pytest.mark.timeout(300)  # dozens of processes, one after the other

JOBS = 60
WHOLE = "sqlite"  # the suite of which all is measured
HEADINGS = (
    "# Benchmark: ",
    "## Throughput",
    "## Latency and cost",
    "## What each contender guarantees",
    "## Raw",
)


def test_contenders_in_environments_of_their_own_need_no_perdure():
    """Some have older drivers or another Python than Perdure, and run where it is not installed."""
    program = f"""
import sys
sys.modules["perdure"] = None
from benchmarks.registry import suite_named
for name in {sorted(SUITES)!r}:
    suite_named(name)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SUITES)
def test_a_tiny_run_of_the_command(name, tmp_path):
    """One test for all that it is asked, because it is dozens of processes. Only what is importable here takes part; what
    all suites have in common is measured in one of them."""
    suite = _suite(name)
    measured = _measured(suite)
    file = tmp_path / "figures.json"
    size = ["--jobs", str(JOBS), "--samples", "5", "--idle", "0.1", "--backlog", "100", "--churn", "100"]
    only = ["--only", ",".join(contender.key for contender in suite.contenders if _of_this_environment(contender))]
    asked = ["--measures", ",".join(measured)] if measured else []
    command = [sys.executable, "-m", "benchmarks", suite.name, "--quick", *size, *only, *asked, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(file.read_text())
    _page_has_all_its_parts(suite, done.stdout)
    _every_contender_that_is_here_ran_everything_it_can_do(suite, content, measured)
    assert {figure: set(found) for figure, found in content["medians"].items()} == {
        figure: set(found) for figure, found in content["samples"].items()
    }
    assert list(content["raw"]) == list(suite.raw_labels())
    assert min(rate for rates in content["raw"].values() for rate in rates) > 0


def _measured(suite):
    """What is measured in the tiny run of this suite; nothing: everything."""
    if suite.name == WHOLE:
        return ()
    own = {name for contender in suite.contenders for name in suite.measures(contender)}
    return ("raw limit", "enqueue bulk", "drain loop", *sorted(own))


def _suite(name):
    kind = "valkey" if name == "redis" else name
    if kind in servers.KINDS:
        try:
            servers.KINDS[kind](durable=True)
        except servers.NotAvailable as missing:
            real_servers.decline(kind, missing)
    return suite_named(name)


def _of_this_environment(contender):
    """Those in Node, or in an environment of their own, depend on what was measured here before."""
    return contender.program() == PYTHON


def _page_has_all_its_parts(suite, page):
    assert page.startswith(f"# Benchmark: {suite.title}")
    assert [heading for heading in HEADINGS if heading not in page] == []


def _every_contender_that_is_here_ran_everything_it_can_do(suite, content, measured):
    available = [contender for contender in suite.available() if _of_this_environment(contender)]
    assert content["failures"] == []
    assert sorted(content["versions"]) == sorted(contender.key for contender in available)
    assert sorted([*content["versions"], *content["missing"]]) == sorted(suite.keys())
    wanted = {contender.key for contender in suite.contenders if _of_this_environment(contender)}
    assert set(content["reasons"]) == wanted - set(content["versions"])
    for contender in available:
        everyones = ["drain", "memory"]
        everyones += [] if measured else ["enqueue_single", "idle_cpu", "latency_p50", "latency_p99"]
        own = [figure.key for figure in suite.figures if figure not in FIGURES]
        for figure in [*everyones, *(own if contender.long_runs else [])]:
            assert len(content["samples"][figure][contender.key]) == 1


class ShortDrain(Spawner):
    """A contender that loses a job, handles one twice, or leaves one behind."""

    def __init__(self, **wrong):
        super().__init__(suite_named("sqlite"))
        self.result = {"seconds": 1.0, "calls": JOBS, "distinct": JOBS, "completed": JOBS, "waiting": 0, "memory": 1.0}
        self.result.update(wrong)

    def run(self, place: Path, contender, verb, **options):
        return self.result


@pytest.mark.parametrize(
    "wrong", [{"calls": JOBS - 1}, {"calls": JOBS + 1}, {"distinct": JOBS - 1}, {"completed": JOBS - 1}, {"waiting": 1}]
)
def test_a_drain_that_did_not_run_all_its_handlers_gives_no_figure(wrong):
    contender = suite_named("sqlite").contender("huey")
    with pytest.raises(Failed):
        measures_for(contender)["drain loop"](ShortDrain(**wrong), contender, Plan(jobs=JOBS))


def test_every_contender_states_its_durability_and_known_measures():
    for name in SUITES:
        for contender in suite_named(name).contenders:
            assert all(
                [contender.durability.writes, contender.durability.power_loss, contender.durability.worker_killed]
            )
            assert set(measures_for(contender)) <= set(MEASURES)
            assert not set(suite_named(name).measures(contender)) & set(MEASURES)


class ShortDrainByTwo(Spawner):
    """Two processes that share the jobs; `first` and `wrong` are what each says of itself beside the truth."""

    def __init__(self, first=None, **wrong):
        super().__init__(suite_named("postgres"))
        self.first = first or {}
        self.wrong = wrong

    def run(self, place, contender, verb, **options):
        return {}

    def start(self, place, contender, verb, *, own, jobs, **options):
        (place / f"ready-{own}").touch()
        (place / f"seen-{own}").write_bytes(bytes(number % 2 == own for number in range(jobs)))
        said = {"calls": jobs // 2, "began": own * 0.5, "ended": 1.5 + own * 0.5}
        return Told({**said, **(self.wrong if own else self.first)})


class Told:
    def __init__(self, result):
        self._result = result

    def wait_for(self, file):
        assert file.exists()

    def result(self):
        return self._result

    def kill(self):
        pass


def test_a_drain_by_two_is_timed_from_the_first_beginning_to_the_last_end():
    contender = suite_named("postgres").contender("pgqueuer")
    drain_two = suite_named("postgres").measures(contender)["drain by two"]
    assert drain_two(ShortDrainByTwo(), contender, Plan(jobs=JOBS)) == {"drain_two": 2 * JOBS / 2.0}
    with pytest.raises(Failed, match="handler calls"):
        drain_two(ShortDrainByTwo(calls=JOBS + 1), contender, Plan(jobs=JOBS))


def test_a_process_that_came_too_late_for_any_job_has_no_part_in_the_time():
    contender = suite_named("redis").contender("rq")
    spawner = ShortDrainByTwo(first={"calls": 2}, calls=18, began=0.5, ended=2.0)
    drain_two = suite_named("redis").measures(contender)["drain by two"]
    plan = Plan(jobs=500)
    assert drain_two(spawner, contender, plan) == {"drain_two": 20 / 2.0}
    idle = ShortDrainByTwo(first={"calls": 20}, calls=0, began=0.0, ended=9.0)
    assert drain_two(idle, contender, plan) == {"drain_two": 20 / 1.5}


def test_a_ratio_above_one_always_means_better():
    results = Results("sqlite")
    figures = {figure.key: figure for figure in FIGURES}
    results.add("a", {"drain": 20.0, "latency_p50": 1.0})
    results.add("b", {"drain": 10.0, "latency_p50": 4.0})
    assert results.advantage(figures["drain"], "a", "b") == 2.0
    assert results.advantage(figures["latency_p50"], "a", "b") == 4.0
    assert results.advantage(figures["memory"], "a", "b") is None


def test_a_disturbed_run_says_so_by_what_no_contender_has_a_part_in():
    quiet = Results("sqlite", loads=[0.5, 2.0], raw={"a": [100.0, 150.0]})
    assert quiet.disturbances(cores=2) == []
    assert "load reached 6.4" in Results("sqlite", loads=[3.0, 6.4]).disturbances(cores=2)[0]
    assert "1 of 2 raw limits" in Results("sqlite", raw={"a": [5.0, 60.0], "b": [9.0, 9.0]}).disturbances(cores=2)[0]


def test_processes_that_drain_together_know_when_all_is_done(tmp_path):
    first, second = (SharedProbe(4, folder=tmp_path, own=own, processes=2) for own in range(2))
    for number, probe in enumerate([first, second, second, first]):
        probe(payload(number))
    waiting = Thread(target=first.wait)
    waiting.start()
    second.wait()
    waiting.join(10)
    assert first.finished.is_set()
    assert (first.account()["calls"], second.account()["calls"]) == (2, 2)
    assert [(tmp_path / f"seen-{own}").read_bytes() for own in range(2)] == [bytes([1, 0, 0, 1]), bytes([0, 1, 1, 0])]


def test_tables_are_markdown_with_figures_on_the_right():
    assert table(["", "n"], [["a", "10"]]) == "|   |  n |\n|---|---:|\n| a | 10 |"


def test_an_unknown_contender_is_named():
    with pytest.raises(SystemExit, match="nobody"):
        suite_named("sqlite").available(["nobody"])


def test_an_unknown_measure_is_named():
    with pytest.raises(SystemExit, match="under speed; there are: raw limit, enqueue single"):
        run(suite_named("sqlite"), Plan(), measured=["latency", "speed"])
