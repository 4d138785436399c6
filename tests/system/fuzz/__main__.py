"""`./dev fuzz STORE`: bad values in every stored field of a store, with a table of what came of them."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shlex
import sys
import tempfile
import traceback
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import servers

from .harness import Failure
from .report import Report
from .stores import OUTBOXES, STORES, fuzz

EXAMPLES = """examples:
  ./dev fuzz sqlite
  ./dev fuzz postgres --seed 5 --count 6000
  ./dev fuzz valkey --only "rows.lease = NaN"
  ./dev fuzz outbox-postgres
"""
FEW = 10  # mutations that are named in a command
say = partial(print, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev fuzz",
        description="Write bad values into every stored field of a store, and check that nothing else suffers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("store", choices=(*STORES, *OUTBOXES))
    parser.add_argument("--seed", type=int, default=17, help="another one gives another order and other victims [17]")
    parser.add_argument("--count", type=int, default=1_500, help="how many values are written [1500]")
    parser.add_argument(
        "--only", action="append", metavar="FIELD = VALUE", help="only this mutation, on jobs of many kinds; repeatable"
    )
    parser.add_argument("--no-narrowing", action="store_true", help="do not look for the mutation that made a run fail")
    chosen = parser.parse_args()
    logging.getLogger("perdure").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="perdure-fuzz-") as folder:
        runs = Runs(chosen.store, chosen.seed, Path(folder))
        try:
            say(runs.run(chosen.count, chosen.only).table())
        except Failure as failure:
            tell(failure)
            names = failure.names if chosen.no_narrowing else runs.narrow(failure.names)
            again = runs.command(names) if len(names) <= FEW else shlex.join(["./dev", "fuzz", *sys.argv[1:]])
            say(f"to repeat it: {again}")
            return 1
        finally:
            runs.stop()
    return 0


def tell(failure: Failure) -> None:
    where = traceback.extract_tb(failure.__cause__.__traceback__)[-4:] if failure.__cause__ else []
    say("".join(traceback.format_list(where)), f"failed: {failure}", sep="")


class Runs:
    """Runs on fresh stores of one kind."""

    def __init__(self, store: str, seed: int, folder: Path) -> None:
        self._store = store
        self._seed = seed
        self._folder = folder
        self._runs = 0
        self._servers: dict[str, servers.Server] = {}

    def run(self, count: int, only: Collection[str] | None = None) -> Report:
        self._runs += 1
        folder = self._folder / str(self._runs)
        folder.mkdir()
        return asyncio.run(fuzz(self._store, folder, self._server, seed=self._seed, count=count, only=only))

    def narrow(self, names: Sequence[str]) -> Sequence[str]:
        """As few of these mutations as still make a run fail."""
        while len(names) > 1:
            half = len(names) // 2
            failing = next((part for part in (names[:half], names[half:]) if self._fails(part)), None)
            if failing is None:
                return names
            names = failing
        return names

    def _fails(self, names: Sequence[str]) -> bool:
        say(f"trying {len(names)} of them …")
        try:
            self.run(0, names)
        except Failure as failure:
            tell(failure)
            return True
        return False

    def command(self, names: Sequence[str]) -> str:
        only = [part for name in names for part in ("--only", name)]
        return shlex.join(["./dev", "fuzz", self._store, "--seed", str(self._seed), *only])

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()

    def _server(self, kind: str) -> servers.Server:
        if kind not in self._servers:
            self._servers[kind] = servers.start(kind, within=self._folder)
        return self._servers[kind]


if __name__ == "__main__":
    sys.exit(main())
