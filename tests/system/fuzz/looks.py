"""Every listing of the app and of the command line: none fails because of a bad value."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner

from perdure import NotFound, Perdure, PerdureError, State
from perdure.cli.root import perdure

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("jobs", "list"),
    ("jobs", "list", "--json"),
    ("queues",),
    ("schedules",),
    ("workers",),
    ("doctor",),
    ("dead", "list"),
)


async def look_at_everything(app: Perdure, ids: Sequence[str]) -> None:
    """Every listing of the app returns what can be read, and so does a look at some of these jobs. No bad value makes one
    fail."""

    async def list_all() -> None:
        cursor = None
        while True:
            page = await app.jobs.find(limit=500, cursor=cursor)
            cursor = page.cursor
            if cursor is None:
                return

    looks = (
        list_all,
        lambda: app.dead.find(limit=500),
        lambda: app.jobs.find(state=State.RUNNING),
        lambda: app.jobs.find(tag="a"),
        lambda: app.jobs.find(text="a"),
        lambda: app.jobs.find(tenant="t"),
        lambda: app.jobs.count(),
        app.queues.list,
        app.workers.list,
        app.schedules.list,
    )
    for look in looks:
        await look()
    for id in ids[::7]:
        try:
            await app.jobs.get(id)
            await app.jobs.log(id)
        except NotFound:  # its id was spoiled
            continue


async def look_from_command_line(url: str, ids: Sequence[str]) -> None:
    """The commands that only read, on the store and on some of these jobs."""
    with tempfile.TemporaryDirectory() as folder:
        export = ("dead", "export", str(Path(folder, "dead.jsonl")))
        single = [("jobs", "get", id) for id in ids[:: max(1, len(ids) // 3)]]
        for command in (*COMMANDS, export, *single):
            await asyncio.to_thread(_run, url, command)


def _run(url: str, command: Sequence[str]) -> None:
    """`--debug` lets an error through as it is: without it the command line would word a foreign one as well."""
    done = CliRunner().invoke(perdure, ["--debug", *command], env={"PERDURE_URL": url})
    error = done.exception
    if error is not None and not isinstance(error, PerdureError | SystemExit):
        where = "".join(traceback.format_exception(error)[-6:])
        raise AssertionError(f"`perdure {' '.join(command)}` failed with an error that is not ours: {where}")
