"""`perdure workers`: list the live workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..output import Listing, age_since, json_option, print_json, print_table
from ..target import on_store, runtime_of

if TYPE_CHECKING:
    from perdure import Perdure


@click.group("workers", cls=Listing)
def command() -> None:
    """List the live workers.

    \b
    Examples:
      perdure workers --app shop.app:app
      perdure workers --json
    """


@command.command("list")
@json_option
@on_store
async def list_workers(app: Perdure, as_json: bool) -> None:
    """List the workers that sent a heartbeat lately. --json adds version, host, queues and tasks.

    \b
    Example:
      perdure workers list --json
    """
    from perdure.observe.workers import fleet

    workers = await fleet(await runtime_of(app).storage())
    if as_json:
        fields = ("id", "seen_at", "started_at", "running")
        about = ("version", "python", "host", "pid", "concurrency", "queues", "tasks")
        print_json(
            {
                "workers": [
                    {field: getattr(worker, field) for field in fields}
                    | {field: worker.about.get(field) for field in about}
                    for worker in workers
                ]
            }
        )
        return
    rows = [
        (worker.id, worker.about.get("version", "?"), worker.running, f"{age_since(worker.seen_at)} ago")
        for worker in workers
    ]
    print_table(("WORKER", "VERSION", "RUNNING", "SEEN"), rows, nothing="no workers are alive")
