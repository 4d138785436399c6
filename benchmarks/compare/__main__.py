"""`python -m benchmarks.compare BASE`: measure a commit and the working tree in turn, print the ratios."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ..machine import machine_lines
from ..options import positive, some_of
from .measures import MEASURES
from .report import page
from .run import Sizes, run
from .sides import Unusable, both_sides
from .stores import STORES

ALL = "all"
ROUNDS = 6
SAMPLES = 150
DESCRIPTION = """\
Measure BASE (side A) and the working tree (side B) in short runs that alternate: A B, B A, A B …
Prints the medians of both sides, the median of the paired ratios B/A with its spread, and whether it is more than noise.

The working tree is measured as it is, with changes that are not committed. BASE is checked out into a temporary
worktree. Both run with this Python and these drivers, every measurement in fresh processes on a fresh store.

A pair of all measures takes about half a minute, so the default of six pairs takes three to four minutes for one store.
--env sets a variable for side B only: with HEAD as BASE and a clean tree, it is all that differs.
"""
EXAMPLES = """\
examples:
  ./dev bench compare main                                        every measure on SQLite
  ./dev bench compare main --store postgres,valkey --measures drain,pickup --rounds 10
  ./dev bench compare HEAD --env PERDURE_FAST_PATHS=0             what the fast paths gain
  ./dev bench compare v1.2 --store all --json compared.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    stores = list(STORES) if ALL in options.store else options.store
    sizes = Sizes(options.rounds, options.samples, options.jobs)
    machine = machine_lines()
    try:
        with both_sides(options.base, dict(options.env)) as sides:
            for side in sides:
                _tell(f"{side.letter}: {side.title}")
            results = run(sides, stores, options.measures, sizes, _tell)
    except Unusable as error:
        parser.error(str(error))
    print(page(results, machine, options.measures))
    if options.json:
        content = {"machine": machine, **results.as_dict()}
        options.json.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return 1 if results.failures or not results.pairs else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench compare",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stores, measures = [*STORES, ALL], list(MEASURES)
    add = parser.add_argument
    add("base", metavar="BASE", help="a commit, branch or tag of this repository")
    add("--store", type=some_of(stores), default=["sqlite"], metavar="NAME[,NAME]", help=_choices(stores, "sqlite"))
    add("--measures", type=some_of(measures), default=measures, metavar="NAME[,NAME]", help=_choices(measures, ALL))
    add("--rounds", type=positive, default=ROUNDS, metavar="N", help=f"pairs of runs (default {ROUNDS})")
    add("--jobs", type=positive, metavar="N", help="jobs of a drain (default: a few seconds' worth on each store)")
    add("--samples", type=positive, default=SAMPLES, metavar="N", help=f"pickups of a run (default {SAMPLES})")
    add("--env", type=_assignment, action="append", default=[], metavar="NAME=VALUE",
        help="an environment variable for side B only; may be given more than once")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every sample and the summaries")
    return parser


def _choices(names: Sequence[str], default: str) -> str:
    return f"{', '.join(names)} (default {default})"


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text} is no NAME=VALUE")
    return name, value


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stop(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    # SIGINT too: Python ends by the signal itself, whoever catches it, when it interrupts an exec() of a text.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    sys.exit(main())
