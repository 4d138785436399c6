"""`perdure demo`: show what Perdure does, with real processes on a temporary SQLite file.

`tasks` is the app, `chapters` the parts of the demo, `summary` the checks at the end, `worker_processes` starts and kills
workers, and `screen` prints.
"""

from __future__ import annotations

import click

from ...target import debug_option


@click.command("demo")
@click.option("--jobs", type=click.IntRange(100, 100_000), default=3000, show_default=True, help="Number of jobs.")
@click.option("--keep", is_flag=True, help="Keep the folder with the store and the logs.")
@click.option("--deadline", type=click.FloatRange(min=1), default=120.0, hidden=True)
@debug_option
def command(jobs: int, keep: bool, deadline: float) -> None:
    """See Perdure at work: thousands of jobs, retries, dead letters, and a worker killed with -9.

    Runs in a temporary folder on an SQLite file, in well under a minute. Exit code 0 means that every claim was checked and
    holds.

    \b
    Examples:
      perdure demo
      perdure demo --jobs 10000
      perdure demo --keep
    """
    from .run import show

    raise SystemExit(show(jobs, keep, deadline))
