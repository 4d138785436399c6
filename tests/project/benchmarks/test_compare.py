"""The comparison of two checkouts: a tiny run of all of it, its order, its verdicts; and it leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from benchmarks.compare.__main__ import main
from benchmarks.compare.measures import MEASURES, Measure
from benchmarks.compare.pairs import NOISE, TOO_FEW, TOO_SMALL, Pairs, confidence, interval_of_median
from benchmarks.compare.report import HEAD
from benchmarks.compare.run import Results, Sizes, run
from benchmarks.compare.sides import Side, both_sides
from benchmarks.contender import ROOT
from benchmarks.results import Figure

pytestmark = pytest.mark.timeout(300)  # dozens of processes, one after the other
in_a_repository = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="there is no commit to compare with"
)
RATE = Figure("rate", "rate", "jobs/s", "high")
TIME = Figure("time", "time", "ms", "low")


# ---- the command ---------------------------------------------------------------------------------------------------------
@in_a_repository
def test_a_tiny_run_gives_a_row_for_every_figure_and_leaves_no_worktree(tmp_path):
    file = tmp_path / "compared.json"
    size = ["--rounds", "1", "--jobs", "100", "--samples", "5"]
    process = _compare(tmp_path, "HEAD", *size, "--env", "PERDURE_FAST_PATHS=0", "--json", str(file))
    page, told = process.communicate(timeout=280)
    assert process.returncode == 0, told
    assert f"| {HEAD[0]} " in page
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in page.splitlines() if line.startswith("| ")}
    figures = [figure for measure in MEASURES.values() for figure in measure.figures if "server" not in figure.key]
    assert list(rows)[1:] == [f"{figure.title}, {figure.unit}" for figure in figures]
    assert {len(cells) for cells in rows.values()} == {len(HEAD) - 1}

    compared = json.loads(file.read_text())
    assert compared["sides"]["B"].endswith("PERDURE_FAST_PATHS=0")
    by_figure = compared["pairs"]["sqlite"]
    assert list(by_figure) == [figure.key for figure in figures]
    for key, found in by_figure.items():
        far = 10 if key.endswith("_cpu") else 200  # others use the machine too, and commits of a disk differ by much
        assert 1 / far < found["ratio"] < far, key
    _nothing_is_left(tmp_path)


@in_a_repository
def test_fast_paths_are_switched_off_on_side_b_only():
    asked = "from perdure.storage.rules import fast_path; print(fast_path.enabled())"
    with both_sides("HEAD", {"PERDURE_FAST_PATHS": "0"}) as sides:
        answers = [
            subprocess.run(
                [sys.executable, "-c", asked], env=side.environment, capture_output=True, text=True, check=True
            ).stdout.strip()
            for side in sides
        ]
    assert answers == ["True", "False"]


@in_a_repository
def test_ctrl_c_removes_the_worktree(tmp_path):
    process = _compare(tmp_path, "HEAD", "--measures", "drain")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("A: ")
    assert "perdure-compare-" in _worktrees(tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    _nothing_is_left(tmp_path)


@in_a_repository
def test_an_unknown_commit_is_named(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["no-such-branch"])
    assert exit.value.code == 2
    assert "cannot compare with no-such-branch: this repository has no such commit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--store", "oracle"], "unknown: oracle; known are sqlite, sqlite+apsw, postgres"),
        (["--measures", "speed"], "unknown: speed; known are drain, limited, pickup, bulk, flows"),
        (["--env", "FAST"], "FAST is no NAME=VALUE"),
        (["--rounds", "0"], "must be at least 1"),
    ],
)
def test_wrong_arguments_are_named(wrong, told, capsys):
    with pytest.raises(SystemExit):
        main(["HEAD", *wrong])
    assert told in capsys.readouterr().err


def _compare(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.compare", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _worktrees(folder):
    listed = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in listed.splitlines() if line.startswith(str(folder)))


def _nothing_is_left(folder):
    assert _worktrees(folder) == ""
    assert list(folder.glob("perdure-compare-*")) == []


# ---- order ---------------------------------------------------------------------------------------------------------------
def test_sides_alternate_and_each_measures_with_its_own_environment(monkeypatch):
    order = []

    def measure(spawner, contender, plan):
        order.append(spawner._environment["SIDE"])
        return {"rate": {"A": 10.0, "B": 20.0}[order[-1]]}

    monkeypatch.setitem(MEASURES, "drain", Measure("", measure, (RATE,)))
    sides = (Side("A", "one", {"SIDE": "A"}), Side("B", "other", {"SIDE": "B"}))
    results = run(sides, ["sqlite"], ["drain"], Sizes(rounds=3, samples=1), lambda line: None)
    assert "".join(order) == "ABBAAB"
    assert results.pairs["sqlite"]["rate"].samples == [(10.0, 20.0)] * 3


# ---- verdicts ------------------------------------------------------------------------------------------------------------
def test_a_ratio_is_that_of_the_pairs_not_of_the_medians():
    pairs = Pairs(RATE, [(100.0, 110.0), (10.0, 11.0), (50.0, 55.0), (1.0, 1.1), (7.0, 7.7)])
    summary = pairs.summary()
    assert summary.ratio == pytest.approx(1.1)
    assert (summary.a, summary.b) == (10.0, 11.0)
    assert summary.verdict == "B is better by 10.0 %"


def test_a_time_that_grows_is_worse():
    assert Pairs(TIME, [(10.0, 12.0)] * 4).summary().verdict == "B is worse by 20.0 %"
    assert Pairs(TIME, [(10.0, 8.0)] * 4).summary().verdict == "B is better by 20.0 %"


def test_ratios_on_both_sides_of_one_are_noise():
    summary = Pairs(RATE, [(10.0, 12.0), (10.0, 9.0), (10.0, 12.0), (10.0, 12.0)]).summary()
    assert summary.verdict == NOISE
    assert summary.extremes == summary.interval == (0.9, 1.2)


def test_one_odd_pair_among_many_does_not_hide_a_difference():
    summary = Pairs(RATE, [(10.0, 9.0), *[(10.0, 12.0)] * 9]).summary()
    assert summary.extremes == (0.9, 1.2)
    assert summary.interval == (1.2, 1.2)
    assert summary.verdict == "B is better by 20.0 %"


def test_too_little_is_not_judged():
    assert Pairs(RATE, [(10.0, 20.0)] * 3).summary().verdict == TOO_FEW
    assert Pairs(TIME, [(0.0, 0.0)] * 9).summary().verdict == TOO_SMALL


def test_the_interval_leaves_out_what_the_confidence_allows():
    assert [confidence(count) for count in (1, 2, 4, 6)] == [0.0, 0.5, 0.875, 0.96875]
    assert interval_of_median([float(value) for value in range(10)]) == (1.0, 8.0)
    assert interval_of_median([1.0]) == (1.0, 1.0)


def test_a_figure_that_one_side_lacks_is_left_out():
    results = Results({}, rounds=1)
    results.add("postgres", "drain", {"drain": 1.0, "drain_server_cpu": 2.0}, {"drain": 2.0})
    assert list(results.pairs["postgres"]) == ["drain"]
