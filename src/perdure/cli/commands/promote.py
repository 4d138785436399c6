"""`perdure promote`: move everything from one store to another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

import click

from ..output import json_option, plural, print_json, print_table
from ..progress import progress
from ..root import FAILED
from ..target import debug_option

if TYPE_CHECKING:
    from perdure.storage.urls import StoreUrl
    from perdure.transfer.checksum import Checksum
    from perdure.transfer.transfer import Moved, Outlook


@click.command("promote")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Pause SRC and wait this long for running jobs and workers to end.  [default: refuse at once]",
)
@click.option("--dry-run", is_flag=True, help="Print what would be moved and what prevents it; write nothing.")
@json_option
@debug_option
def command(source: str, target: str, wait: float, dry_run: bool, as_json: bool) -> None:
    """Move everything from one store to another: jobs in all states with errors, results, progress and logs, dependencies,
    queues and settings, unique keys, schedules, subscriptions, steps and answers.

    SRC and DST are URLs. DST must be empty, or contain part of an interrupted move of SRC, which then continues. No worker
    may use either store. At the end the command compares counts and checksums. SRC keeps everything and stays paused, so
    that nothing runs twice. If the move fails, SRC is resumed.

    \b
    Examples:
      perdure promote sqlite:///jobs.db postgresql://localhost/shop --dry-run
      perdure promote sqlite:///jobs.db postgresql://localhost/shop --wait 60
      perdure promote redis://localhost:6379/0 mongodb://localhost/shop --json
    """
    from perdure import StoreError

    here, there = _parse_addresses(source, target)
    try:
        if dry_run:
            outlook = asyncio.run(_plan(source, target, there, quiet=as_json))
            _print_plan(outlook, here, there, as_json)
            if outlook.hindrances:
                raise SystemExit(FAILED)
        else:
            moved = asyncio.run(_move(source, target, wait, quiet=as_json))
            _print_result(moved, here, there, as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise StoreError(f"given up: {here} goes on as before; the same command goes on with the move") from None


# ---- addresses -------------------------------------------------------------------------------------
def _parse_addresses(source: str, target: str) -> tuple[StoreUrl, StoreUrl]:
    from perdure import InvalidCall
    from perdure.storage.urls import parse

    here, there = parse(source), parse(target)
    for name, address in (("SRC", here), ("DST", there)):
        if address.server is None and address.path is None:
            raise InvalidCall(
                f"{name} is {address}, which lives in one process only: nothing can be moved there or back"
            )
    if _location(here) == _location(there):
        raise InvalidCall(f"SRC and DST are the same store: {here}")
    return here, there


def _location(address: StoreUrl) -> Path | str:
    return str(address) if address.path is None else address.path.expanduser().resolve()


@asynccontextmanager
async def _open_store(url: str, *, migrate: bool) -> AsyncIterator[Any]:
    from perdure.storage.urls import opener

    store = opener(url, durability="relaxed", migrate=migrate)()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _move(source: str, target: str, wait: float, *, quiet: bool) -> Moved:
    from perdure.transfer.transfer import move

    async with _open_store(source, migrate=False) as here, _open_store(target, migrate=True) as there:
        with _cancel_on_sigterm(), progress(quiet) as report:
            return await move(here, there, report, wait=wait)


@contextmanager
def _cancel_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the source does not stay paused."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    try:
        loop.add_signal_handler(SIGTERM, task.cancel)
    except NotImplementedError:  # Windows has none
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(SIGTERM)


async def _plan(source: str, target: str, address: StoreUrl, *, quiet: bool) -> Outlook:
    from perdure.transfer.transfer import look_ahead

    async with _open_store(source, migrate=False) as here:
        with progress(quiet) as report:
            if not await asyncio.to_thread(_has_schema, target, address):
                return await look_ahead(here, None, report)
            async with _open_store(target, migrate=False) as there:
                return await look_ahead(here, there, report)


def _has_schema(url: str, address: StoreUrl) -> bool:
    """Whether the target has a schema. The move creates a target that does not exist."""
    from perdure.storage.migrations import status
    from perdure.storage.urls import ledger

    if address.path is not None and not address.path.expanduser().exists():
        return False
    opened, migrations, close = ledger(url)
    try:
        return status(opened, migrations).version > 0
    finally:
        close()


# ---- output -------------------------------------------------------------------------------
def _print_result(moved: Moved, here: StoreUrl, there: StoreUrl, as_json: bool) -> None:
    if as_json:
        things = {_json_key(each.name): _document(each.target) for each in moved.counted}
        carried = {"source": str(here), "target": str(there), "equal": True, "already_there": moved.already_there}
        print_json({**carried, "things": things, "paused_at_target": list(moved.paused)})
        return
    for each in moved.counted:
        _print_counts(each.target)
    print_table(
        ("MOVED", "SOURCE", "TARGET", "CHECKSUM", ""),
        [(each.name, each.source.total, each.target.total, _hex(each.target), "equal") for each in moved.counted],
        nothing="",
    )
    if moved.already_there:
        click.echo(f"{plural(moved.already_there, 'job')} had been moved before")
    click.echo(
        f"\nEverything of {here} is at {there} now. The source still has it too and is paused, so that nothing runs"
    )
    click.echo(
        "twice. Next: start workers and clients with the new URL; do not resume the source. Delete it when you no"
    )
    click.echo("longer need it.")
    if moved.paused:
        click.echo(f"Paused at the target, as they were at the source: {', '.join(moved.paused)}")


def _print_plan(outlook: Outlook, here: StoreUrl, there: StoreUrl, as_json: bool) -> None:
    if as_json:
        things = {_json_key(name): _document(counted) for name, counted in outlook.counted}
        planned = {"source": str(here), "target": str(there), "dry_run": True, "already_there": outlook.already_there}
        print_json({**planned, "things": things, "hindrances": list(outlook.hindrances)})
        return
    for _, counted in outlook.counted:
        _print_counts(counted)
    rows = [(name, counted.total, _hex(counted)) for name, counted in outlook.counted]
    print_table(("TO BE MOVED", "SOURCE", "CHECKSUM"), rows, nothing="")
    if outlook.already_there:
        click.echo(f"{plural(outlook.already_there, 'job')} have been moved before")
    for hindrance in outlook.hindrances:
        click.echo(f"in the way: {hindrance}")
    click.echo(f"nothing was written; without --dry-run all this would be moved from {here} to {there}")


def _print_counts(counted: Checksum) -> None:
    """Print jobs by state and queue. Other things have no groups."""
    groups = [(*group, number) for group, number in sorted(counted.counts.items()) if group]
    if groups:
        print_table(("STATE", "QUEUE", "JOBS"), groups, nothing="")
        click.echo()


def _document(counted: Checksum) -> dict[str, object]:
    document: dict[str, object] = {"count": counted.total, "checksum": _hex(counted)}
    groups = [group for group in counted.counts if group]
    for number, name in enumerate(("by_state", "by_queue")):
        if groups:
            by: Counter[str] = Counter()
            for group in groups:
                by[group[number]] += counted.counts[group]
            document[name] = dict(sorted(by.items()))
    return document


def _json_key(name: str) -> str:
    return name.replace(" ", "_")


def _hex(counted: Checksum) -> str:
    return f"{counted.checksum:016x}"
