"""`perdure graph`: draw a flow as a tree or a Mermaid chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..flow_view import MOST, draw_mermaid, draw_tree, edges_of, flow_of, with_parents
from ..output import job_document, json_option, print_json
from ..target import on_store

if TYPE_CHECKING:
    from perdure import Perdure


@click.command("graph")
@click.argument("id")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid flowchart.")
@json_option
@on_store
async def command(app: Perdure, id: str, as_mermaid: bool, as_json: bool) -> None:
    """Draw the flow that a job belongs to, with dependencies and states.

    \b
    Examples:
      perdure graph 0197a3c4-…
      perdure graph 0197a3c4-… --mermaid > flow.mmd
    """
    jobs = await with_parents(app, await flow_of(app, id))
    if as_json:
        pairs = [{"from": parent, "to": child} for parent, child in edges_of(jobs)]
        print_json({"jobs": [job_document(job) for job in jobs], "edges": pairs})
        return
    for line in draw_mermaid(jobs) if as_mermaid else draw_tree(jobs):
        click.echo(line)
    if len(jobs) >= MOST:
        click.echo(f"only {MOST} jobs are drawn: perdure jobs count --by-state --chain-id {jobs[0].chain_id}", err=True)
