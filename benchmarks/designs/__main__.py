"""`python -m benchmarks.designs`: compare the designs, print the tables, keep them as JSON or in the docs on request."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

import servers

from ..machine import machine_lines
from ..spawn import ROOT
from .catalogue import DESIGNS, design_named
from .report import report, written_into
from .results import SCENARIOS, Results
from .run import Plan, run

PAGE = ROOT / "docs" / "internals" / "postgres.md"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    results = Results.load(options.load) if options.load else _measured(options)
    text = report(results)
    print(text)
    if options.write_docs:
        PAGE.write_text(written_into(PAGE.read_text(), text))
    return 0


def _measured(options: argparse.Namespace) -> Results:
    results = Results(machine_lines())
    designs = [design_named(name) for name in options.designs]

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        if options.json:
            results.save(options.json)

    with servers.start("postgres", durable=True) as server:
        results.server = _described(server.url)
        run(server, designs, _plan(options), results, tell)
    return results


def _parser() -> argparse.ArgumentParser:
    names = [design.name for design in DESIGNS]
    parser = argparse.ArgumentParser(prog="benchmarks.designs", description="Schemas for PostgreSQL, side by side.")
    add = parser.add_argument
    add("--jobs", type=int, default=Plan.churned, help=f"jobs of the long runs (default {Plan.churned:,})")
    add("--waiting", type=int, default=Plan.waiting, help=f"jobs of the backlog (default {Plan.waiting:,})")
    add("--rounds", type=int, default=Plan.rounds, help=f"rounds of the drains (default {Plan.rounds})")
    add("--designs", type=_some_of(names), default=names, metavar="NAME[,NAME]", help=", ".join(names))
    add("--scenarios", type=_some_of(SCENARIOS), default=SCENARIOS, metavar="NAME[,NAME]", help=", ".join(SCENARIOS))
    add("--json", type=Path, metavar="FILE", help="write every measurement, after each")
    add("--load", type=Path, metavar="FILE", help="measure nothing, report what such a file holds")
    add("--write-docs", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    drained = max(500, min(options.jobs // 20, Plan.drained))
    return Plan(options.jobs, options.waiting, drained, options.rounds, scenarios=options.scenarios)


def _some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return names

    return chosen


def _described(url: str) -> str:
    names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "autovacuum_naptime")
    with psycopg.connect(url) as connection:
        values = [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


if __name__ == "__main__":
    sys.exit(main())
