"""`python -m benchmarks SUITE`: run a suite, print the page, keep it as JSON or in the docs on request."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .contender import ROOT
from .measures import Plan
from .options import names, positive
from .registry import SUITES, suite_named
from .report import page
from .run import run

QUICK = Plan(rounds=1, jobs=1_000, samples=30, idle_seconds=1.0, backlog=2_000, churn=2_000)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    suite = suite_named(options.suite)
    results = run(suite, _plan(options), only=options.only, measured=options.measures, tell=_tell)
    text = page(suite, results)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(results.as_dict(), indent=2, ensure_ascii=False) + "\n")
    if options.write_docs:
        _write_docs(options.suite, text)
    return 1 if results.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Perdure beside its peers, in one run.")
    parser.add_argument("suite", choices=sorted(SUITES), help="the store to measure")
    parser.add_argument("--rounds", type=positive, help=f"rounds, medians are reported (default {Plan.rounds})")
    parser.add_argument("--jobs", type=positive, help=f"jobs of a drain and of a bulk enqueue (default {Plan.jobs})")
    parser.add_argument("--samples", type=positive, help=f"latency samples a round (default {Plan.samples})")
    parser.add_argument("--idle", type=float, help=f"seconds of watching an idle worker (default {Plan.idle_seconds})")
    parser.add_argument("--backlog", type=positive, help=f"jobs that wait behind a drain (default {Plan.backlog:,})")
    parser.add_argument("--churn", type=positive, help=f"jobs drained under an old snapshot (default {Plan.churn:,})")
    parser.add_argument("--only", type=names, default=(), metavar="NAME[,NAME]", help="only these contenders")
    parser.add_argument(
        "--measures",
        type=names,
        default=(),
        metavar="NAME[,NAME]",
        help='only these, as "raw limit,drain loop,latency"',
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample and the medians")
    parser.add_argument("--quick", action="store_true", help="one short round: does it run, not how fast")
    parser.add_argument("--write-docs", action="store_true", help="write the page to docs/benchmarks")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    base = QUICK if options.quick else Plan()
    return Plan(
        rounds=options.rounds or base.rounds,
        jobs=options.jobs or base.jobs,
        samples=options.samples or base.samples,
        idle_seconds=options.idle or base.idle_seconds,
        backlog=options.backlog or base.backlog,
        churn=options.churn or base.churn,
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write_docs(suite: str, text: str) -> None:
    target = ROOT / "docs" / "benchmarks" / f"{suite}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
