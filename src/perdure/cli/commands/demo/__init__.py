"""`perdure demo`: what Perdure does, shown with real processes on an embedded SQLite file.

`tasks` is the app that runs, `chapters` the story, `account` the proof at the end, `fleet` the worker processes and
`screen` what is seen.
"""

from __future__ import annotations

import click

from ...target import debug_option


@click.command("demo")
@click.option(
    "--jobs", type=click.IntRange(100, 100_000), default=3000, show_default=True, help="How many jobs to run."
)
@click.option("--keep", is_flag=True, help="Keep the folder, to look around in it afterwards.")
@click.option("--deadline", type=click.FloatRange(min=1), default=120.0, hidden=True)
@debug_option
def command(jobs: int, keep: bool, deadline: float) -> None:
    """See Perdure at work: thousands of jobs, retries, dead letters, and a worker killed with -9.

    Runs by itself in a temporary folder on an embedded SQLite file, in well under a minute. Exit code 0 means that all
    it claims was found true.

    \b
    Examples:
      perdure demo
      perdure demo --jobs 10000
      perdure demo --keep
    """
    from .run import show

    raise SystemExit(show(jobs, keep, deadline))
