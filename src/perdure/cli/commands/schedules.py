"""`perdure schedules`: list and control stored schedules."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ..output import Listing, confirm, iso, json_option, print_fields, print_json, print_table, yes_option
from ..target import on_store

if TYPE_CHECKING:
    from perdure import Perdure, ScheduleInfo


@click.group("schedules", cls=Listing)
def command() -> None:
    """List, pause, resume, run, preview and remove schedules. Without a subcommand: list.

    \b
    Examples:
      perdure schedules list
      perdure schedules preview nightly --count 10
      perdure schedules pause nightly
      perdure schedules run-now nightly
    """


@command.command("list")
@json_option
@on_store
async def list_schedules(app: Perdure, as_json: bool) -> None:
    """List schedules with their next and last tick. An orphan is no longer declared in code and does not fire.

    \b
    Example:
      perdure schedules list --json
    """
    schedules = await app.schedules.list()
    if as_json:
        print_json({"schedules": [asdict(schedule) for schedule in schedules]})
        return
    columns = ("NAME", "STATE", "NEXT", "LAST", "RUNS", "TASK", "CRON")
    rows = [
        (each.name, _state(each), each.next_at, each.last_at, each.runs, each.task, f"{each.cron} {each.timezone}")
        for each in schedules
    ]
    print_table(columns, rows, nothing="no schedules")


@command.command("show")
@click.argument("name")
@json_option
@on_store
async def show(app: Perdure, name: str, as_json: bool) -> None:
    """Show everything about a schedule.

    \b
    Example:
      perdure schedules show nightly
    """
    schedule = await _find_schedule(app, name)
    document = asdict(schedule)
    print_json(document) if as_json else print_fields({"state": _state(schedule), **document}.items())


@command.command("preview")
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of ticks, at most 1,000."
)
@json_option
@on_store
async def preview(app: Perdure, name: str, count: int, as_json: bool) -> None:
    """Show the next ticks of a schedule, in UTC.

    \b
    Example:
      perdure schedules preview nightly --count 10
    """
    await _find_schedule(app, name)
    ticks = await app.schedules.preview(name, count)
    if as_json:
        print_json({"schedule": name, "ticks": ticks})
        return
    for tick in ticks:
        click.echo(iso(tick, "seconds"))


@command.command("pause")
@click.argument("name")
@json_option
@on_store
async def pause(app: Perdure, name: str, as_json: bool) -> None:
    """Stop a schedule from firing. Its jobs continue.

    \b
    Example:
      perdure schedules pause nightly
    """
    await _find_schedule(app, name)
    await app.schedules.pause(name)
    print_json({"schedule": name, "paused": True}) if as_json else click.echo(f"paused: {name}")


@command.command("resume")
@click.argument("name")
@json_option
@on_store
async def resume(app: Perdure, name: str, as_json: bool) -> None:
    """Let a paused schedule fire again, from its next tick.

    \b
    Example:
      perdure schedules resume nightly
    """
    await _find_schedule(app, name)
    await app.schedules.resume(name)
    print_json({"schedule": name, "paused": False}) if as_json else click.echo(f"resumed: {name}")


@command.command("run-now")
@click.argument("name")
@json_option
@on_store
async def run_now(app: Perdure, name: str, as_json: bool) -> None:
    """Enqueue a schedule's job now. Its ticks do not change.

    \b
    Example:
      perdure schedules run-now nightly
    """
    await _find_schedule(app, name)
    job = await app.schedules.run_now(name)
    if as_json:
        print_json({"schedule": name, "job": job.id, "duplicate": job.duplicate, "dropped": job.dropped})
    elif job.dropped:
        click.echo("dropped: its queue is full")
    else:
        click.echo(f"{'at work already' if job.duplicate else 'enqueued'}: {job.id}")


@command.command("remove")
@click.argument("name")
@yes_option
@json_option
@on_store
async def remove(app: Perdure, name: str, yes: bool, as_json: bool) -> None:
    """Delete a schedule. Its jobs stay. A schedule that code declares comes back with the next worker.

    \b
    Example:
      perdure schedules remove nightly --yes
    """
    schedule = await _find_schedule(app, name)
    confirm(f"Remove the schedule {schedule.name} ({schedule.cron})?", yes)
    await app.schedules.remove(name)
    print_json({"schedule": name, "removed": True}) if as_json else click.echo(f"removed: {name}")


async def _find_schedule(app: Perdure, name: str) -> ScheduleInfo:
    from perdure import NotFound

    for schedule in await app.schedules.list():
        if schedule.name == name:
            return schedule
    raise NotFound(f"there is no schedule {name!r}; `perdure schedules list` shows those there are")


def _state(schedule: ScheduleInfo) -> str:
    if schedule.unreadable:
        return "unreadable"
    if schedule.orphan:
        return "orphan"
    if schedule.paused:
        return "paused"
    return "over" if schedule.next_at is None else "open"
