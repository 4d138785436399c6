"""`python -m benchmarks.worker`: every case on every store, each in a process of its own; prints the tables."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import servers

from ..machine import load, machine_lines
from ..options import some_of
from ..spawn import ROOT
from .plan import CASES, QUICK, STORES, Case, Plan
from .report import Results, report
from .tasks import URL

WITHIN = 900.0  # seconds for one case
PAGE = ROOT / "docs" / "benchmarks" / "worker.md"
# A file that is made anew during a drain slows it down by half, and it was always the same one of a turn.
SETTINGS = {"valkey": {"auto-aof-rewrite-percentage": "0"}}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    plan = QUICK if options.quick else Plan()
    plan = replace(plan, rounds=options.rounds or plan.rounds)
    results = Results(machine_lines(), plan.as_dict())
    for store in options.stores:
        with _place(store) as fresh:
            for _ in range(plan.rounds):
                for case in CASES:
                    if case.name in options.cases:
                        _measure(store, case, plan, fresh(), results)
    text = report(results)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(results.as_dict(), indent=2, ensure_ascii=False) + "\n")
    if options.write_docs:
        PAGE.write_text(text)
    return 1 if results.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.worker", description="What the worker does, on every store.")
    names = [case.name for case in CASES]
    add = parser.add_argument
    add("--stores", type=some_of(STORES), default=STORES, metavar="NAME[,NAME]", help=", ".join(STORES))
    add("--cases", type=some_of(names), default=names, metavar="NAME[,NAME]", help=", ".join(names))
    add("--rounds", type=int, help=f"rounds, medians are reported (default {Plan.rounds})")
    add("--quick", action="store_true", help="one short round: does it run, not how fast")
    add("--json", type=Path, metavar="FILE", help="write every sample")
    add("--write-docs", action="store_true", help=f"write the page to {PAGE.relative_to(ROOT)}")
    return parser


@contextmanager
def _place(store: str) -> Iterator:
    """Gives addresses that nobody used before, on a server of the run or in a folder."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
            numbers = iter(range(1_000_000))
            yield lambda: f"sqlite:///{folder}/{next(numbers)}.db"
    else:
        with servers.start(store, durable=True, settings=SETTINGS.get(store)) as server:
            yield server.fresh


def _measure(store: str, case: Case, plan: Plan, url: str, results: Results) -> None:
    command = [sys.executable, "-m", "benchmarks.worker.cases", case.name, json.dumps(plan.as_dict())]
    results.loads.append(load())
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, URL: url}, capture_output=True, text=True, timeout=WITHIN
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        said = (
            done.stderr.strip().splitlines()[-1:] if not isinstance(error, subprocess.TimeoutExpired) else [str(error)]
        )
        results.failures.append(f"{case.name} on {store}: {' '.join(said) or 'it said nothing'}")
        print(f"  {store:<10} {case.name:<10} failed: {results.failures[-1]}", file=sys.stderr, flush=True)
        return
    results.samples.setdefault(case.name, {}).setdefault(store, []).append(told)
    shown = "  ".join(f"{key} {value:,.2f}" for key, value in told.items())
    print(f"  {store:<10} {case.name:<10} {shown}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
