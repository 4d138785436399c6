"""`perdure queues`: list queues with their depth and settings, pause and configure them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click

from ..output import Listing, age, json_option, print_json, print_table
from ..target import on_store, runtime_of

if TYPE_CHECKING:
    from perdure import Perdure

SETTINGS = ("max_depth", "on_full", "drop_below", "fair", "weights")


def _parse_weight(text: str) -> tuple[str, float]:
    """Parse TENANT=NUMBER."""
    tenant, _, share = text.partition("=")
    try:
        return tenant, float(share)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no tenant with a number, such as gold=2") from None


@click.group("queues", cls=Listing)
def command() -> None:
    """List, pause, resume and configure queues. Without a subcommand: list.

    \b
    Examples:
      perdure queues
      perdure queues --json --target 60
      perdure queues pause mail
      perdure queues configure mail --max-depth 10000 --on-full reject
    """


@command.command("list")
@click.option(
    "--target",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Also print how many workers would clear the backlog in this time.  [default with --json: 60]",
)
@json_option
@on_store
async def list_queues(app: Perdure, seconds: float | None, as_json: bool) -> None:
    """List queues with their depth and the age of their oldest due job.

    \b
    Examples:
      perdure queues list --json
      perdure queues list --target 60
    """
    if seconds is not None or as_json:
        await _print_scale(app, seconds, as_json)
        return
    rows = [
        (queue.name, "paused" if queue.paused else "open", queue.depth, age(queue.oldest), _describe_settings(queue))
        for queue in await app.queues.list()
    ]
    print_table(("QUEUE", "STATE", "DEPTH", "OLDEST", "SETTINGS"), rows, nothing="no queues")


def _describe_settings(queue: Any) -> str:
    """The settings of a queue in words."""
    parts = []
    if queue.max_depth is not None:
        below = "" if queue.drop_below is None else f" below {queue.drop_below}"
        parts.append(f"at most {queue.max_depth}, else {queue.on_full}{below}")
    if queue.fair:
        parts.append(" ".join(["fair", *(f"{tenant}={weight:g}" for tenant, weight in queue.weights.items())]))
    return "; ".join(parts)


async def _print_scale(app: Perdure, target: float | None, as_json: bool) -> None:
    from perdure.observe.scaling_hint import DEFAULT_TARGET, scale

    listed = await app.queues.list()
    names = [queue.name for queue in listed]
    hint = await scale(await runtime_of(app).storage(), DEFAULT_TARGET if target is None else target, names)
    if as_json:
        settings = {queue.name: {name: getattr(queue, name) for name in SETTINGS} for queue in listed}
        queues = [asdict(each) | {"settings": settings.get(each.name)} for each in hint.queues]
        print_json(asdict(hint) | {"queues": queues})
        return
    rows = [
        (each.name, each.ready, age(each.oldest), each.running, f"{each.rate:g}/s", each.workers)
        for each in hint.queues
    ]
    print_table(("QUEUE", "READY", "OLDEST", "RUNNING", "RATE", "WORKERS"), rows, nothing="no queues")
    click.echo(f"workers for all of them: {hint.workers}, alive: {hint.alive}")


@command.command("pause")
@click.argument("name")
@json_option
@on_store
async def pause(app: Perdure, name: str, as_json: bool) -> None:
    """Start no more jobs of a queue. Running jobs continue.

    \b
    Example:
      perdure queues pause mail
    """
    await app.queues.pause(name)
    print_json({"queue": name, "paused": True}) if as_json else click.echo(f"paused: {name}")


@command.command("resume")
@click.argument("name")
@json_option
@on_store
async def resume(app: Perdure, name: str, as_json: bool) -> None:
    """Start jobs of a paused queue again.

    \b
    Example:
      perdure queues resume mail
    """
    await app.queues.resume(name)
    print_json({"queue": name, "paused": False}) if as_json else click.echo(f"resumed: {name}")


@command.command("configure")
@click.argument("name")
@click.option("--max-depth", type=click.IntRange(min=1), help="Jobs that may wait in it.  [default: no bound]")
@click.option(
    "--on-full",
    type=click.Choice(["reject", "drop", "wait"]),
    default="reject",
    show_default=True,
    help="What happens to an enqueue when the queue is full.",
)
@click.option("--drop-below", type=int, help="With --on-full drop: drop only jobs of a lower priority.")
@click.option("--fair", is_flag=True, help="Tenants take turns, whatever the number of their jobs.")
@click.option(
    "--weight",
    "weights",
    type=_parse_weight,
    multiple=True,
    metavar="TENANT=NUMBER",
    help="With --fair: the weight of a tenant.  [default: 1]",
)
@json_option
@on_store
async def configure(
    app: Perdure,
    name: str,
    max_depth: int | None,
    on_full: Literal["reject", "drop", "wait"],
    drop_below: int | None,
    fair: bool,
    weights: Sequence[tuple[str, float]],
    as_json: bool,
) -> None:
    """Write all settings of a queue. Options that you omit return to their defaults.

    \b
    Examples:
      perdure queues configure mail --max-depth 10000
      perdure queues configure clicks --max-depth 5000 --on-full drop --drop-below 5
      perdure queues configure shared --fair --weight gold=2 --weight trial=0.5
    """
    shares = dict(weights)
    await app.queues.configure(
        name, max_depth=max_depth, on_full=on_full, drop_below=drop_below, fair=fair, weights=shares
    )
    if not as_json:
        click.echo(f"configured: {name}")
        return
    bound = {"max_depth": max_depth, "on_full": on_full, "drop_below": drop_below}
    print_json({"queue": name, **bound, "fair": fair, "weights": shares})
