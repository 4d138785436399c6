"""`perdure chain`: list the jobs of a chain in order."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from ..flow_view import MOST, flow_of
from ..output import JOB_COLUMNS, job_document, job_row, json_option, print_json, print_table
from ..target import on_store

if TYPE_CHECKING:
    from perdure import Perdure


@click.command("chain")
@click.argument("id")
@json_option
@on_store
async def command(app: Perdure, id: str, as_json: bool) -> None:
    """Show the jobs of the chain or flow that a job belongs to, the oldest first, and how many are in which state.

    \b
    Examples:
      perdure chain 0197a3c4-…
      perdure chain 0197a3c4-… --json
    """
    jobs = await flow_of(app, id)
    states = Counter(job.state.value for job in jobs)
    if as_json:
        chain = str(jobs[0].chain_id)
        print_json({"chain": chain, "states": dict(states), "jobs": [job_document(job) for job in jobs]})
        return
    print_table(JOB_COLUMNS, [job_row(job) for job in jobs], nothing="no jobs")
    click.echo(", ".join(f"{count} {state}" for state, count in sorted(states.items())), err=True)
    if len(jobs) >= MOST:
        click.echo(f"the newest {MOST} are shown: perdure jobs list --chain-id {jobs[0].chain_id}", err=True)
