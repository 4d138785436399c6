"""Options that filter jobs, shared by several commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from perdure import State

F = TypeVar("F", bound=Callable[..., Any])
STATES = ("blocked", "scheduled", "ready", "running", "succeeded", "skipped", "dead", "cancelled")
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str) -> datetime:
    """Parse 2026-05-01, 2026-05-01T12:00:00+02:00 (UTC without an offset), or an age such as 90m, 2h, 7d."""
    try:
        if ago := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        message = f"{text!r} is neither a date (2026-05-01T12:00:00Z) nor an age (30s 90m 2h 7d 4w)"
        raise click.BadParameter(message) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_names(text: str) -> tuple[str, ...]:
    """Parse several values, separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:  # probably an unset variable in a script: do not treat it as "all"
        raise click.BadParameter(f"{text!r} names nothing; leave the option out for all")
    return found


def flatten(values: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """All values of an option that may be given several times."""
    return tuple(part for value in values for part in value)


_STATE = click.option(
    "--state", type=parse_names, metavar="STATES", multiple=True, help=f"One or more of: {', '.join(STATES)}."
)
_OTHERS = (
    click.option("--task", help="Only jobs of this task."),
    click.option("--queue", help="Only jobs of this queue."),
    click.option("--tenant", help="Only jobs of this tenant: exactly, or up to a '/'."),
    click.option("--key", help="Only jobs with this key."),
    click.option("--tag", help="Only jobs with this tag."),
    click.option("--routing-key", help="Only jobs with this routing key."),
    click.option("--unrouted", is_flag=True, help="Only jobs without a routing key."),
    click.option("--chain-id", help="Only jobs of this chain or flow."),
    click.option("--text", help="Only jobs with this text in payload, key, reason or errors."),
    click.option(
        "--since", type=parse_time, metavar="TIME", help="Created at this time or later: a date, or an age such as 2h."
    ),
    click.option(
        "--before", type=parse_time, metavar="TIME", help="Created before this time: a date, or an age such as 7d."
    ),
)


def filter_options(command: F) -> F:
    """Every filter of `app.jobs.find`."""
    return _STATE(dead_filter_options(command))


def dead_filter_options(command: F) -> F:
    """The filters without --state, for dead letters."""
    for option in reversed(_OTHERS):
        command = option(command)
    return command


def page_options(command: F) -> F:
    command = click.option("--cursor", help="Continue after an earlier page.")(command)
    return click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)(command)


def filter_of(
    *, state: tuple[tuple[str, ...], ...] = (), routing_key: str | None, unrouted: bool, **others: Any
) -> dict[str, Any]:
    """The filter as `find` takes it, with only the options that were set."""
    if unrouted and routing_key is not None:
        raise click.UsageError("--routing-key and --unrouted exclude each other")
    chosen = {name: value for name, value in others.items() if value is not None}
    if states := flatten(state):
        chosen["state"] = [_state(name) for name in states]
    if unrouted or routing_key is not None:
        chosen["routing_key"] = routing_key
    return chosen


def _state(name: str) -> State:
    from perdure import State

    if name not in STATES:
        raise click.UsageError(f"there is no state {name!r}; the states are {', '.join(STATES)}")
    return State(name)
