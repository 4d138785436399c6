"""The benchmark of the worker in a short form: every case runs, on a file and on a server, and its figures make sense."""

import json

from benchmarks.worker.__main__ import main
from benchmarks.worker.plan import CASES, case_named
from benchmarks.worker.report import Results, report

MAY_BE_ZERO = {"lost"}


def test_every_case_gives_its_figures(tmp_path, capsys):
    file = tmp_path / "figures.json"
    assert main(["--quick", "--stores", "sqlite", "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    measured = told["samples"]
    assert set(measured) == {case.name for case in CASES}
    for name, by_store in measured.items():
        (sample,) = by_store["sqlite"]
        assert set(sample) == {figure.key for figure in case_named(name).figures}
        zero = {figure for figure, value in sample.items() if value <= 0}
        assert zero <= MAY_BE_ZERO, (name, sample)
    assert measured["renewals"]["sqlite"][0]["lost"] == 0
    assert measured["renewals"]["sqlite"][0]["renewed"] > 0
    text = capsys.readouterr().out
    assert all(f"## {case.title}" in text for case in CASES)


def test_what_fails_is_told():
    results = Results(["a machine"], {**_plan(), "rounds": 1})
    results.failures.append("io on sqlite: it broke")
    results.samples["idle"] = {"mongo": [{"cpu": 1.0, "questions": 3.0}, {"cpu": 3.0, "questions": 5.0}]}
    text = report(results)
    assert "Failed: io on sqlite: it broke." in text
    assert [cell.strip() for cell in text.split("| mongo")[1].splitlines()[0].split("|")[1:3]] == ["2.00", "4.00"]


def _plan():
    from benchmarks.worker.plan import QUICK

    return QUICK.as_dict()
