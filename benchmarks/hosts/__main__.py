"""`python -m benchmarks.hosts`: kill hosts with running jobs, and measure when the jobs come back, on every store."""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil, nan
from pathlib import Path

from ..contender import ROOT
from ..flow.stores import STORES, Stores
from ..machine import load, machine_lines
from ..options import some_of
from ..tables import table
from .measure import Came, Plan, measure

PAGE = ROOT / "docs" / "benchmarks" / "hosts.md"
KINDS = {"running": "already running", "fresh": "started after the deaths"}
LEASES = {"running": 3.0, "fresh": 12.0}  # seconds; a fresh worker takes some to start, even on a busy machine
ON_SERVERS = [name for name in STORES if name != "memory"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    machine = machine_lines()
    found: dict[str, dict[str, Came]] = {}
    with ExitStack() as stack:
        stores = Stores(stack)
        for store in options.stores:
            for kind in options.only:
                chance = random.Random(f"{seed} {store} {kind}")
                lease = options.lease or LEASES[kind]
                plan = Plan(lease, options.hosts, options.jobs, options.at_once, chance)
                with stores.empty(store) as url:
                    came = asyncio.run(measure(url, plan, fresh=kind == "fresh"))
                found.setdefault(kind, {})[store] = came
                print(f"{store:<10} {kind:<8} {'  '.join(_cells(came))}", file=sys.stderr, flush=True)
    text = page(machine, found, options, seed)
    print(text)
    if options.json:
        samples = {kind: {store: vars(came) for store, came in by.items()} for kind, by in found.items()}
        content = {"machine": machine, "seed": seed, "samples": samples, "load": load()}
        options.json.write_text(json.dumps(content, indent=2) + "\n")
    if options.write_docs:
        PAGE.write_text(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.hosts", description="How soon the jobs of dead hosts come back.")
    add = parser.add_argument
    add("--hosts", type=int, default=40, help="hosts that are killed, on each store and for each kind (default 40)")
    add("--jobs", type=int, default=5, help="jobs that each of them runs (default 5)")
    add("--at-once", type=int, default=10, help="hosts that run together (default 10)")
    add("--lease", type=float, help="seconds (default: 3, and 12 for a fresh worker)")
    add("--stores", type=some_of(ON_SERVERS), default=ON_SERVERS, metavar="NAME[,NAME]", help=", ".join(ON_SERVERS))
    add("--only", type=some_of(list(KINDS)), default=list(KINDS), metavar="NAME[,NAME]", help=", ".join(KINDS))
    add("--seed", type=int, help="of the moments at which hosts are killed")
    add("--json", type=Path, metavar="FILE", help="write every measurement")
    add("--write-docs", action="store_true", help=f"write the page to {PAGE.relative_to(ROOT)}")
    return parser


def _cells(came: Came) -> list[str]:
    in_time = [late for late, so in zip(came.late, came.in_time, strict=True) if so]
    told = [f"{each:.2f}" for each in _shares(came.late)]
    return [str(len(came.late)), *told, str(len(in_time)), *(f"{each:.2f}" for each in _shares(in_time)[1:])]


def _shares(seconds: Sequence[float]) -> list[float]:
    """The middle, what 99 of 100 do not exceed, and the most."""
    ordered = sorted(seconds) or [nan]
    return [ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 1.0)]


def page(machine: Sequence[str], found: dict[str, dict[str, Came]], options: argparse.Namespace, seed: int) -> str:
    parts = [
        "# Jobs of dead hosts",
        f"The benchmark kills {options.hosts} processes that each run {options.jobs} jobs with SIGKILL, each at a random"
        f" moment, {options.at_once} per round. It reads the store every 20 ms and notes when each job comes back.",
        "Seconds count from one lease after the death of the host. Negative values are normal: the worker renewed the lease"
        " up to a third of a lease before it died. Jobs of one host come back together, when the last of their leases is"
        " over. A worker reaps only after it has reached the store for a third of a lease. The last three columns count"
        " only jobs that became due after that.",
        f"Measured by `./dev bench hosts --seed {seed}`, one run, so no spread is known: {'; '.join(machine)}.",
    ]
    for kind, by_store in found.items():
        lease = options.lease or LEASES[kind]
        parts += [f"## A worker that was {KINDS[kind]}, leases of {lease:g} s"]
        rows = [[store, *_cells(came)] for store, came in by_store.items()]
        parts += [table(["store", "jobs", "p50", "p99", "latest", "worker there in time", "p99", "latest"], rows)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
