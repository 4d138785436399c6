"""`perdure dead`: list, retry, export and purge dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..filters import dead_filter_options, filter_of, page_options
from ..output import Listing, confirm, json_option, plural, print_json, yes_option
from ..root import FAILED
from ..target import on_store
from .jobs import print_page

if TYPE_CHECKING:
    from perdure import Perdure


@click.group("dead", cls=Listing)
def command() -> None:
    """List, retry, export and purge dead letters: jobs whose attempts ran out. Without a subcommand: list.

    \b
    Examples:
      perdure dead list --task send_email
      perdure dead retry 0197a3c4-…
      perdure dead retry-all --task send_email --since 24h
      perdure dead export letters.jsonl
      perdure dead purge --before 90d
    """


@command.command("list")
@dead_filter_options
@page_options
@json_option
@on_store
async def list_letters(app: Perdure, limit: int, cursor: str | None, as_json: bool, **filters: Any) -> None:
    """List dead letters, newest first.

    \b
    Example:
      perdure dead list --task send_email --since 24h
    """
    print_page(await app.dead.find(limit=limit, cursor=cursor, **filter_of(**filters)), as_json, "no dead letters")


@command.command("retry")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@on_store
async def retry(app: Perdure, ids: tuple[str, ...], as_json: bool) -> None:
    """Give dead letters a fresh budget of attempts. They keep their id and history.

    \b
    Example:
      perdure dead retry 0197a3c4-…
    """
    retried = await app.dead.retry(*ids)
    if as_json:
        print_json({"asked": len(ids), "retried": retried})
    else:
        click.echo(f"retried: {retried} of {len(ids)}")
    if retried < len(ids):
        raise SystemExit(FAILED)


@command.command("retry-all")
@dead_filter_options
@yes_option
@json_option
@on_store
async def retry_all(app: Perdure, yes: bool, as_json: bool, **filters: Any) -> None:
    """Retry every dead letter that matches the filter; without a filter, all of them.

    \b
    Examples:
      perdure dead retry-all --task send_email --since 24h
      perdure dead retry-all --yes
    """
    chosen = filter_of(**filters)
    count = await _count_dead(app, chosen)
    confirm(f"Retry {plural(count, 'dead letter')}?", yes or not count)
    _print_count("retried", await app.dead.retry_all(**chosen), as_json)


@command.command("purge")
@dead_filter_options
@click.option("--cascade", is_flag=True, help="Also delete the jobs that wait for them.")
@yes_option
@json_option
@on_store
async def purge(app: Perdure, cascade: bool, yes: bool, as_json: bool, **filters: Any) -> None:
    """Delete the dead letters that match a filter, for good. A filter is required. A dead letter that other jobs wait for
    stays, and the exit code is 1, unless --cascade deletes those jobs too.

    \b
    Example:
      perdure dead purge --task send_email --before 90d --yes
    """
    chosen = filter_of(**filters)
    if not chosen:
        raise click.UsageError("purge needs a filter, e.g. --task or --before; for everything: --before 0s")
    count = await _count_dead(app, chosen)
    confirm(f"Delete {plural(count, 'dead letter')} for good?", yes or not count)
    purged = await app.dead.purge(cascade=cascade, **chosen)
    refused = await _count_dead(app, chosen)
    if as_json:
        print_json({"purged": purged, "refused": refused})
    else:
        _print_count("purged", purged, as_json)
    if refused:
        if not as_json:
            click.echo(
                f"not deleted: {plural(refused, 'dead letter')} that jobs wait for; --cascade deletes those jobs too"
            )
        raise SystemExit(FAILED)


@command.command("export")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@dead_filter_options
@json_option
@on_store
async def export(app: Perdure, path: Path, as_json: bool, **filters: Any) -> None:
    """Write dead letters to a file, one JSON document per line.

    \b
    Example:
      perdure dead export letters.jsonl --task send_email
    """
    exported = await app.dead.export(path, **filter_of(**filters))
    if as_json:
        print_json({"exported": exported, "path": str(path)})
    else:
        click.echo(f"exported: {plural(exported, 'dead letter')} to {path}")


async def _count_dead(app: Perdure, chosen: dict[str, Any]) -> int:
    from perdure import State

    return await app.jobs.count(state=State.DEAD, **chosen)


def _print_count(what: str, count: int, as_json: bool) -> None:
    print_json({what: count}) if as_json else click.echo(f"{what}: {plural(count, 'dead letter')}")
