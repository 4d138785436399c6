"""`perdure relay`: move jobs from an app's outbox to its store, or print the lag."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from perdure.observe.log_format import log_to_stderr
from perdure.storage.urls import parse

from ..output import age, json_option, plural, print_fields, print_json, printable
from ..target import app_of, debug_option, outbox_of, runtime_of, url_of
from .worker import LEVELS

if TYPE_CHECKING:
    from perdure import Perdure

SHOWN = 20  # rows set aside to print


@click.command("relay")
@click.option("--app", "target", metavar="MODULE:APP", help="The app with the outbox, e.g. shop.app:app.")
@click.option("--url", metavar="URL", help="The store to move to, with --outbox.  [default: $PERDURE_URL]")
@click.option("--outbox", metavar="URL", help="The database that holds the outbox.")
@click.option("--once", is_flag=True, help="Move the current jobs, print the status, and exit.")
@click.option("--status", is_flag=True, help="Move nothing; only print the status.")
@click.option("--retry", is_flag=True, help="First try the rows that were set aside again.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@json_option
@debug_option
def command(target: str | None, url: str | None, outbox: str | None, log_level: str, **options: Any) -> None:
    """Move jobs from an outbox to their store until SIGTERM or SIGINT.

    Every worker of an app with an outbox does the same; use this command to move jobs without running them. Any number of
    relays may run; one of them works at a time. --json prints one document and exits: how many jobs were moved (with
    --once), how many wait, the age of the oldest in seconds, and the rows that were set aside.

    \b
    Examples:
      perdure relay --app shop.app:app
      perdure relay --app shop.app:app --once
      perdure relay --app shop.app:app --json
      perdure relay --url redis://localhost/0 --outbox postgresql://user@host/shop --once --retry
    """
    if options["once"] and options["status"]:
        raise click.UsageError("--once moves and --status does not; give one of them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log_to_stderr(log_level)
    asyncio.run(_run_relay(_choose_app(target, url, outbox), **options))


def _choose_app(target: str | None, url: str | None, outbox: str | None) -> Perdure:
    from perdure import Perdure

    if target is not None:
        if outbox is not None:
            raise click.UsageError("--app names its own outbox; give --app, or --url and --outbox")
        app = app_of(target, url)
    elif outbox is None:
        raise click.UsageError("which outbox? Give --app module:app, or --url URL and --outbox URL")
    else:
        app = Perdure(url_of(url), outbox=outbox, migrate=False, durability="relaxed")
    if app.settings.outbox is None:
        raise click.UsageError(f"{target} has no outbox: it is made with Perdure(…, outbox=URL)")
    address = parse(app.url)
    if address.path is None and address.server is None:
        raise click.UsageError(
            "a store in memory is another one in each process: only the app's own workers can move jobs to it"
        )
    return app


async def _run_relay(app: Perdure, *, once: bool, status: bool, retry: bool, as_json: bool) -> None:
    relay = runtime_of(app).relay()
    async with app:
        if retry:
            await (await outbox_of(app)).bring_back()
        if once:
            await relay.once()
        elif not status and not as_json:
            await _run_until_signal(relay)
            return
        await _print_status(app, relay.moved, as_json)


async def _run_until_signal(relay: Any) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await relay.run(stopping)


async def _print_status(app: Perdure, moved: int, as_json: bool) -> None:
    outbox = await outbox_of(app)
    state = await outbox.state()
    aside = await outbox.list_aside(SHOWN)
    oldest = None if state.oldest is None else state.oldest / 1e6
    if as_json:
        errors = [{"number": each.number, "id": each.id, "error": each.error} for each in aside]
        document = {"moved": moved, "waiting": state.waiting, "oldest": oldest, "set_aside": state.aside}
        print_json({**document, "errors": errors})
        return
    print_fields(
        [
            ("moved", moved),
            ("waiting", plural(state.waiting, "job")),
            ("oldest", age(oldest)),
            ("set aside", plural(state.aside, "row")),
        ]
    )
    for each in aside:
        click.echo(f"  row {each.number}, job {printable(each.id)}: {printable(each.error)}")
