"""The benchmark of flow and schedules in its tiny form: it runs on every store, and ends in tables."""

import json

from benchmarks.flow.__main__ import main
from benchmarks.flow.measures import MEASURES


def test_it_runs_and_ends_in_tables(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    assert main(["--rounds", "1", "--size", "40", "--stores", "memory,sqlite", "--json", str(figures)]) == 0
    text = capsys.readouterr().out
    samples = json.loads(figures.read_text())["samples"]
    for name, measure in MEASURES.items():
        assert measure.title.format(size=40) in text
        assert set(samples[name]) == {"memory", "sqlite"}
        assert all(set(sample[0]) == set(measure.figures) for sample in samples[name].values())
