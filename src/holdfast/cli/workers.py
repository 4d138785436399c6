"""`holdfast workers`: who is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .output import json_option, print_json, print_table, since
from .store import on_store

if TYPE_CHECKING:
    from holdfast import Holdfast


@click.command("workers")
@json_option
@on_store
async def command(app: Holdfast, as_json: bool) -> None:
    """List the workers that gave a sign of life lately.

    \b
    Examples:
      holdfast workers --app shop.app:app
      holdfast workers --json
    """
    workers = await app.workers.list()
    if as_json:
        fields = ("id", "seen_at", "running")
        print_json({"workers": [{field: getattr(worker, field) for field in fields} for worker in workers]})
        return
    rows = [(worker.id, worker.running, f"{since(worker.seen_at)} ago") for worker in workers]
    print_table(("WORKER", "RUNNING", "SEEN"), rows, nothing="no workers are alive")
