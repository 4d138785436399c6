"""`python -m benchmarks.queues`: what a claim takes with few queues and with very many, in turns, on every store."""

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from perdure.storage.contract import Storage, Want
from perdure.storage.urls import opener

from ..contender import ROOT
from ..flow.stores import STORES, Stores
from ..machine import load, machine_lines
from ..options import some_of
from ..tables import table
from .shapes import SERVED, SHAPES, claim

PAGE = ROOT / "docs" / "benchmarks" / "queues.md"
FEW = 3
Pairs = list[tuple[float, float]]  # milliseconds with few queues, and with many
Samples = dict[str, dict[str, dict[str, Pairs]]]  # by shape, store and want


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    machine = machine_lines()
    samples: Samples = {}
    with ExitStack() as stack:
        stores = Stores(stack)
        for store in options.stores:
            for shape in options.only:
                found = asyncio.run(_measure(stores, store, shape, options))
                samples.setdefault(shape, {})[store] = found
    text = page(machine, samples, options.queues, options.rounds)
    print(text)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "samples": samples, "load": load()}, indent=2) + "\n")
    if options.write_docs:
        PAGE.write_text(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.queues", description="What a claim takes with few and with very many queues, on every store."
    )
    add = parser.add_argument
    add("--queues", type=int, default=30_000, help="how many are very many (default 30,000)")
    add("--rounds", type=int, default=15, help="pairs of claims, medians are reported (default 15)")
    add("--stores", type=some_of(STORES), default=STORES, metavar="NAME[,NAME]", help=", ".join(STORES))
    add("--only", type=some_of(list(SHAPES)), default=list(SHAPES), metavar="NAME[,NAME]", help=", ".join(SHAPES))
    add("--json", type=Path, metavar="FILE", help="write every measurement")
    add("--write-docs", action="store_true", help=f"write the page to {PAGE.relative_to(ROOT)}")
    return parser


async def _measure(stores: Stores, store: str, shape: str, options: argparse.Namespace) -> dict[str, Pairs]:
    _, fill, limited = SHAPES[shape]
    named = SERVED if shape not in ("ready", "limited", "rated") else ("queue-0", "queue-1", "queue-2")
    wants = {"every queue": Want(2, limited=limited), "three named": Want(2, limited=limited, queues=named)}
    with stores.empty(store) as for_few, stores.empty(store) as for_many:
        few, many = await _opened(for_few), await _opened(for_many)
        await fill(few, FEW, options.queues)
        await fill(many, options.queues, options.queues)
        gc.collect()
        found = {name: await _pairs(few, many, want, options.rounds) for name, want in wants.items()}
        await few.close()
        await many.close()
    for name, pairs in found.items():
        print(f"{store:<9} {shape:<15} {name:<12} {_told(pairs)}", file=sys.stderr, flush=True)
    return found


async def _opened(url: str) -> Storage:
    store = opener(url, durability="relaxed")()
    await store.open()
    return store


async def _pairs(few: Storage, many: Storage, want: Want, rounds: int) -> Pairs:
    return [(await _milliseconds(few, want), await _milliseconds(many, want)) for _ in range(rounds)]


async def _milliseconds(store: Storage, want: Want) -> float:
    began = perf_counter()
    await claim(store, want)
    return 1000 * (perf_counter() - began)


def _told(pairs: Pairs) -> str:
    few, many = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    before, after, times = _cells(pairs)
    return f"{before} → {after}, × {times}, first {few[0]:.1f} → {many[0]:.1f}"


def page(machine: Sequence[str], samples: Samples, queues: int, rounds: int) -> str:
    parts = [
        "# Very many queues",
        f"The time of a claim of two jobs with {FEW} queues and with {queues:,}, in milliseconds: the median of {rounds}"
        " alternating claims, and in brackets the shortest and the longest. The longest is mostly the first claim of a"
        f" store object. Measured by `./dev bench queues`: {'; '.join(machine)}.",
    ]
    for shape, by_store in samples.items():
        rows = [
            [f"{store}, {want}", *_cells(pairs)]
            for store, by_want in by_store.items()
            for want, pairs in by_want.items()
        ]
        title = SHAPES[shape][0]
        parts += [f"## {title[0].upper()}{title[1:]}"]
        parts += [table(["store and worker", f"{FEW} queues", f"{queues:,} queues", "times"], rows)]
    return "\n\n".join(parts) + "\n"


def _cells(pairs: Pairs) -> list[str]:
    few, many = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    told = [f"{median(each):.2f} ({min(each):.2f}–{max(each):.2f})" for each in (few, many)]
    return [*told, f"{median(many) / median(few):.2f}"]


if __name__ == "__main__":
    sys.exit(main())
