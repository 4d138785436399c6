"""The benchmarks of many queues and of dead hosts in their tiny forms: they run, and end in tables."""

import json

from benchmarks.hosts.__main__ import main as measure_hosts
from benchmarks.queues.__main__ import main as measure_queues
from benchmarks.queues.shapes import SHAPES


def test_many_queues(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    sizes = ["--rounds", "2", "--queues", "5", "--stores", "memory,sqlite"]
    assert measure_queues([*sizes, "--json", str(figures)]) == 0
    text = capsys.readouterr().out
    samples = json.loads(figures.read_text())["samples"]
    assert set(samples) == set(SHAPES)
    for shape, (title, _, _) in SHAPES.items():
        assert f"## {title[0].upper()}{title[1:]}" in text
        assert all(len(pairs) == 2 for by_want in samples[shape].values() for pairs in by_want.values())


def test_dead_hosts(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    sizes = ["--hosts", "1", "--jobs", "2", "--lease", "1.5", "--only", "running", "--stores", "sqlite"]
    assert measure_hosts([*sizes, "--json", str(figures)]) == 0
    assert "## A worker that was already running, leases of 1.5 s" in capsys.readouterr().out
    (came,) = json.loads(figures.read_text())["samples"]["running"].values()
    assert len(came["late"]) == 2
    assert all(0 <= late < 10 for late in came["after_lease"])
