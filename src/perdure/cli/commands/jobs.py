"""`perdure jobs`: list, show and change jobs."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..filters import STATES, filter_of, filter_options, page_options
from ..output import (
    JOB_COLUMNS,
    Listing,
    confirm,
    failures,
    iso,
    job_document,
    job_row,
    json_option,
    note,
    plural,
    print_fields,
    print_json,
    print_table,
    printable,
    yes_option,
)
from ..root import FAILED
from ..target import on_store, runtime_of

if TYPE_CHECKING:
    from perdure import Job, Page, Perdure

PAGE = 500


@click.group("jobs", cls=Listing)
def command() -> None:
    """List, show, cancel and delete jobs. Without a subcommand: list.

    \b
    Examples:
      perdure jobs list --state ready,running --queue mail
      perdure jobs get 0197a3c4-…
      perdure jobs count --by-state --since 24h
      perdure jobs cancel --task send_email --state scheduled
    """


@command.command("list")
@filter_options
@page_options
@json_option
@on_store
async def list_jobs(app: Perdure, limit: int, cursor: str | None, as_json: bool, **filters: Any) -> None:
    """List jobs, newest first.

    \b
    Examples:
      perdure jobs list --state dead --task send_email
      perdure jobs list --tenant acme --since 2h --json
    """
    chosen = filter_of(**filters)
    page = await app.jobs.find(limit=limit, cursor=cursor, **chosen)
    print_page(page, as_json, "no jobs that fit" if chosen else "no jobs")


def print_page(page: Page[Job], as_json: bool, nothing: str) -> None:
    if as_json:
        print_json({"jobs": [job_document(job) for job in page.items], "cursor": page.cursor})
        return
    print_table(JOB_COLUMNS, [job_row(job) for job in page.items], nothing=nothing)
    if page.cursor is not None:
        click.echo(f"more: --cursor {shlex.quote(page.cursor)}", err=True)


@command.command("get")
@click.argument("id")
@json_option
@on_store
async def get(app: Perdure, id: str, as_json: bool) -> None:
    """Show everything about a job.

    \b
    Example:
      perdure jobs get 0197a3c4-… --json
    """
    job = await _find_job(app, id)
    if as_json:
        print_json(job_document(job))
    else:
        _print_job(job)


async def _find_job(app: Perdure, id: str) -> Job:
    from perdure import NotFound

    job = await app.jobs.get(id)
    if job is None:
        raise NotFound(f"there is no job {id}")
    return job


def _print_job(job: Job) -> None:
    document = job_document(job)
    document |= {"state": job.state.value, "failures": failures(job), "payload": job.payload}
    document |= {"tags": ", ".join(job.tags), "after": ", ".join(map(str, job.after)), "errors": None}
    document |= {"losses": job.losses or None, "max_attempts": None}
    document["meta"] = ", ".join(f"{name}={value}" for name, value in job.meta.items())
    print_fields(document.items())
    for error in job.errors:
        head = f"attempt {error.attempt} on {error.worker} at {iso(error.ended_at, 'seconds')}"
        click.echo(f"\n{printable(head)}\n  {printable(error.kind)}: {printable(error.message)}")
        for line in (error.traceback or "").rstrip().splitlines():
            click.echo(f"  {printable(line)}")


@command.command("count")
@filter_options
@click.option("--by-state", is_flag=True, help="One count for each state.")
@json_option
@on_store
async def count(app: Perdure, by_state: bool, as_json: bool, **filters: Any) -> None:
    """Count jobs.

    \b
    Examples:
      perdure jobs count --state ready --queue mail
      perdure jobs count --by-state
    """
    chosen = filter_of(**filters)
    if not by_state:
        total = await app.jobs.count(**chosen)
        print_json({"count": total}) if as_json else click.echo(total)
        return
    states = chosen.pop("state", None) or STATES
    counts = {str(state): await app.jobs.count(state=state_of(state), **chosen) for state in states}
    if as_json:
        print_json({"count": sum(counts.values()), "states": counts})
    else:
        print_table(("STATE", "JOBS"), counts.items(), nothing="no jobs")


def state_of(state: str) -> Any:
    from perdure import State

    return State(state)


@command.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options
@yes_option
@json_option
@on_store
async def cancel(app: Perdure, ids: tuple[str, ...], yes: bool, as_json: bool, **filters: Any) -> None:
    """Cancel jobs: by id, or all that match a filter.

    A running job becomes cancelled at once, and its handler learns that it must stop.

    \b
    Examples:
      perdure jobs cancel 0197a3c4-…
      perdure jobs cancel --task send_email --state scheduled --yes
    """
    move = Move("cancel", "cancelled", app.jobs.cancel, ("blocked", "scheduled", "ready", "running"))
    await _move(app, move, ids, filters, yes, as_json)


@command.command("run-now")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options
@yes_option
@json_option
@on_store
async def run_now(app: Perdure, ids: tuple[str, ...], yes: bool, as_json: bool, **filters: Any) -> None:
    """Make scheduled jobs due now: by id, or all that match a filter.

    \b
    Examples:
      perdure jobs run-now 0197a3c4-…
      perdure jobs run-now --task report --yes
    """
    move = Move("run now", "made due", app.jobs.run_now, ("scheduled",))
    await _move(app, move, ids, filters, yes, as_json)


@command.command("delete")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options
@click.option("--cascade", is_flag=True, help="Also delete the jobs that wait for them.")
@yes_option
@json_option
@on_store
async def delete(app: Perdure, ids: tuple[str, ...], cascade: bool, yes: bool, as_json: bool, **filters: Any) -> None:
    """Delete jobs for good: by id, or all that match a filter.

    \b
    Examples:
      perdure jobs delete 0197a3c4-…
      perdure jobs delete --state succeeded --before 30d --yes
    """

    async def delete_some(*some: Any) -> int:
        return await app.jobs.delete(*some, cascade=cascade)

    await _move(app, Move("delete", "deleted", delete_some, ()), ids, filters, yes, as_json)


@dataclass(frozen=True)
class Move:
    """An action on jobs: its name before and after, its verb, and the states it applies to."""

    label: str
    done: str
    verb: Callable[..., Awaitable[int]]
    states: tuple[str, ...]


async def _move(
    app: Perdure, move: Move, ids: Sequence[str], filters: dict[str, Any], yes: bool, as_json: bool
) -> None:
    """Apply the action to the named jobs, or after a question to all that match. Exit with 1 if a named job refused."""
    chosen = filter_of(**filters)
    if bool(ids) == bool(chosen):
        raise click.UsageError("give ids, or a filter such as --task or --before; not both, not neither")
    if ids:
        moved = await move.verb(*ids)
    else:
        if move.states and "state" not in chosen:
            chosen["state"] = [state_of(state) for state in move.states]
        count = await app.jobs.count(**chosen)
        confirm(f"{move.label.capitalize()} {plural(count, 'job')}?", yes or not count)
        moved = await _move_all(app, chosen, move.verb)
    if as_json:
        print_json({"asked": len(ids) if ids else None, move.done.replace(" ", "_"): moved})
    else:
        click.echo(f"{move.done}: {moved} of {len(ids)}" if ids else f"{move.done}: {plural(moved, 'job')}")
    if moved < len(ids):
        raise SystemExit(FAILED)


async def _move_all(app: Perdure, chosen: dict[str, Any], verb: Callable[..., Awaitable[int]]) -> int:
    moved, cursor = 0, None
    while True:
        page = await app.jobs.find(limit=PAGE, cursor=cursor, **chosen)
        if page.items:
            moved += await verb(*(job.id for job in page.items))
        if page.cursor is None:
            return moved
        cursor = page.cursor


@command.command("log")
@click.argument("id")
@json_option
@on_store
async def log(app: Perdure, id: str, as_json: bool) -> None:
    """Show the lines that a job's handler logged with ctx.log.

    \b
    Example:
      perdure jobs log 0197a3c4-…
    """
    job = await _find_job(app, id)
    lines = await app.jobs.log(job.id)
    if as_json:
        print_json({"id": job.id, "lines": list(lines)})
        return
    for line in lines:
        click.echo(printable(line))


@command.command("wait")
@click.argument("id")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait at most.  [default: for ever]")
@json_option
@on_store
async def wait(app: Perdure, id: str, timeout: float | None, as_json: bool) -> None:
    """Wait for the end of a job and of its chain, and print the last job. Exit code 1 if it is dead, cancelled or not over
    in time; 0 if it succeeded or was skipped.

    \b
    Example:
      perdure jobs wait 0197a3c4-… --timeout 60
    """
    job = await _wait_for_end(app, id, timeout)
    if as_json:
        print_json(job_document(job))
    else:
        detail = job.result if job.state == "succeeded" else note(job)
        click.echo(f"{job.state.value}" + ("" if detail is None else f": {printable(detail)}"))
    if job.state not in ("succeeded", "skipped"):
        raise SystemExit(FAILED)


@command.command("complete")
@click.argument("id")
@click.option("--result", help="The result, as JSON.  [default: none]")
@json_option
@on_store
async def complete(app: Perdure, id: str, result: str | None, as_json: bool) -> None:
    """Complete a job that somebody else has done. It succeeds and does not run again.

    \b
    Example:
      perdure jobs complete 0197a3c4-… --result '{"by": "hand"}'
    """
    await app.jobs.complete(id, None if result is None else _json(result, "--result"))
    print_json({"id": id, "completed": True}) if as_json else click.echo("completed")


@command.command("answer")
@click.argument("id")
@click.argument("name")
@click.argument("value", required=False)
@json_option
@on_store
async def answer(app: Perdure, id: str, name: str, value: str | None, as_json: bool) -> None:
    """Deliver the answer that a job awaits with ctx.wait_for(NAME). VALUE is JSON.

    \b
    Examples:
      perdure jobs answer 0197a3c4-… approved
      perdure jobs answer 0197a3c4-… approved '{"by": "Ada"}'
    """
    await app.jobs.answer(id, name, None if value is None else _json(value, "VALUE"))
    print_json({"id": id, "answered": name}) if as_json else click.echo("answered")


def _json(text: str, what: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}; a text needs quotes of its own: '\"text\"'") from None


async def _wait_for_end(app: Perdure, id: str, timeout: float | None) -> Job:
    """Wait for the end of a chain and return its last job."""
    from perdure import JobHandle, ResultTimeout

    job = await _find_job(app, id)
    try:
        async with asyncio.timeout(timeout):
            while True:
                async for seen in JobHandle[object](runtime_of(app), str(job.id)).watch():
                    job = seen
                if job.state != "succeeded" or job.next_id is None:
                    return job
                job = await _find_job(app, str(job.next_id))
    except TimeoutError:
        raise ResultTimeout(f"job {job.id} is still {job.state.value} after {timeout:g} s") from None
