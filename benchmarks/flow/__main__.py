"""`python -m benchmarks.flow`: measure, print the tables, keep them as JSON or in the docs on request."""

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from ..contender import ROOT
from ..machine import load, machine_lines
from ..options import some_of
from ..tables import table
from .measures import MEASURES
from .stores import STORES, Stores
from .wrong import Wrong

PAGE = ROOT / "docs" / "benchmarks" / "flow.md"
Samples = dict[str, dict[str, list[dict[str, float]]]]  # by measure and store


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.getLogger("perdure").setLevel(logging.ERROR)  # warnings about load are what is measured here
    machine = machine_lines()
    samples, failures = _measured(options)
    text = page(machine, samples, failures, options.size)
    print(text)
    if options.json:
        content = {"machine": machine, "samples": samples, "failures": failures, "load": load()}
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    if options.write_docs:
        PAGE.write_text(text)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.flow", description="Chains, fans and schedules on every store.")
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="rounds, medians are reported (default 3)")
    add("--size", type=int, help="steps, jobs or schedules of each measure (default: its own)")
    add("--stores", type=some_of(STORES), default=STORES, metavar="NAME[,NAME]", help=", ".join(STORES))
    add("--only", type=some_of(list(MEASURES)), default=list(MEASURES), metavar="NAME[,NAME]", help=", ".join(MEASURES))
    add("--json", type=Path, metavar="FILE", help="write every measurement")
    add("--write-docs", action="store_true", help=f"write the page to {PAGE.relative_to(ROOT)}")
    return parser


def _measured(options: argparse.Namespace) -> tuple[Samples, list[str]]:
    samples: Samples = {}
    failures: list[str] = []
    with ExitStack() as stack:
        stores = Stores(stack)
        for _ in range(options.rounds):
            for name in options.only:
                for store in options.stores:
                    figures = _one(stores, store, name, options.size, failures)
                    if figures is not None:
                        samples.setdefault(name, {}).setdefault(store, []).append(figures)
    return samples, failures


def _one(stores: Stores, store: str, name: str, size: int | None, failures: list[str]) -> dict[str, float] | None:
    measure = MEASURES[name]
    try:
        with stores.empty(store) as url:
            figures: dict[str, float] = asyncio.run(measure.run(url, size or measure.size))
    except Wrong as error:
        failures.append(f"{name} on {store}: {error}")
        print(f"{name:<12} {store:<10} failed: {error}", file=sys.stderr, flush=True)
        return None
    told = "  ".join(f"{key} {value:,.0f}" for key, value in figures.items())
    print(f"{name:<12} {store:<10} {told}", file=sys.stderr, flush=True)
    return figures


def page(machine: Sequence[str], samples: Samples, failures: Sequence[str], size: int | None) -> str:
    rounds = max((len(each) for by_store in samples.values() for each in by_store.values()), default=0)
    spread = f"Medians of {rounds} rounds" if rounds != 1 else "One round, so no spread is known"
    parts = ["# Flow and schedules", f"Measured by `./dev bench flow`: {'; '.join(machine)}. {spread}."]
    for name, by_store in samples.items():
        measure = MEASURES[name]
        rows = [
            [store, *(f"{median(sample[figure] for sample in found):,.0f}" for figure in measure.figures)]
            for store, found in by_store.items()
        ]
        parts += ["## " + measure.title.format(size=size or measure.size)]
        parts += [table(["store", *measure.figures.values()], rows)]
    if failures:
        parts += ["## Failed", "\n".join(f"- {failure}" for failure in failures)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
