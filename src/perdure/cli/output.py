"""Print data: aligned text for people, one JSON document for programs.

Control characters in texts of jobs are escaped, so that no job can control a terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from perdure import Job

F = TypeVar("F", bound=Callable[..., Any])
_AGES = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
# control characters, and lone surrogates, which cannot be encoded
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0xD800, 0xE000))}


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document on stdout. Keys are stable; instants are ISO 8601 in UTC."""
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(document, indent=2, ensure_ascii=plain, default=_plain)
    click.echo(text.translate(_CONTROLS))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str) -> None:
    """Print rows under aligned headings. On a terminal, long lines are cut."""
    lines = [[printable(cell) for cell in row] for row in rows]
    if not lines:
        click.echo(nothing)
        return
    table = [list(columns), *lines]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line if room is None or len(line) <= room else line[: room - 1] + "…")


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print aligned `name  value` lines, without empty fields."""
    filled = [(name, printable(value)) for name, value in fields if value not in (None, "", (), {})]
    width = max((len(name) for name, _ in filled), default=0)
    for name, value in filled:
        click.echo(f"{name.ljust(width)}  {value}")


def confirm(question: str, yes: bool) -> None:
    """Ask before an action that cannot be undone. Without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody is there to answer: say --yes")
    click.confirm(question, abort=True, err=True)


def printable(value: object) -> str:
    """A value as one line without control characters."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return iso(value, "seconds")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def iso(moment: datetime, precision: str = "microseconds") -> str:
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def age(seconds: float | None) -> str | None:
    """A duration in its two largest units: 2h05m, 3d04h, 12s."""
    if seconds is None:
        return None
    rest = max(0, round(seconds))
    for position, (size, unit) in enumerate(_AGES):
        if rest >= size:
            whole, rest = divmod(rest, size)
            if unit == "s":
                return f"{whole}s"
            small, small_unit = _AGES[position + 1]
            return f"{whole}{unit}{rest // small:02d}{small_unit}"
    return "0s"


def age_since(moment: datetime | None) -> str | None:
    return None if moment is None else age((datetime.now(UTC) - moment).total_seconds())


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


# ---- jobs ------------------------------------------------------------------------------------------
JOB_COLUMNS = ("ID", "STATE", "TASK", "QUEUE", "ATTEMPT", "AGE", "NOTE")


def job_row(job: Job) -> tuple[object, ...]:
    return (job.id, job.state.value, job.task, job.queue, failures(job), age_since(job.created_at), note(job) or "")


def failures(job: Job) -> str:
    """Failures of max_attempts, such as `2/5`. Snoozes, losses and hand-backs are no failures."""
    return f"{job.failures}/{'∞' if job.max_attempts is None else job.max_attempts}"


def note(job: Job) -> str | None:
    """One line about a job: why it ended, its last error, its worker, or when it is due."""
    if job.state == "running":
        return f"on {job.leased_by}"
    last = f"{job.errors[-1].kind}: {job.errors[-1].message}" if job.errors else None
    if job.reason:
        more = last and job.state == "dead" and job.errors[-1].message != job.reason
        return f"{job.reason}; last: {last}" if more else job.reason
    if last and job.state != "succeeded":
        return last
    if job.state == "scheduled":
        return f"due {iso(job.run_at, 'seconds')}"
    return None


def _payload(text: str) -> object:
    """The decoded payload, or its text if it is not JSON (the row of the job cannot be read)."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def job_document(job: Job) -> dict[str, object]:
    """A job as a JSON document: the fields in the order of the API, with the payload decoded."""
    document: dict[str, object] = {name: getattr(job, name) for name in type(job).__dataclass_fields__}
    document["payload"] = _payload(job.payload)
    document["errors"] = [
        {name: getattr(error, name) for name in type(error).__dataclass_fields__} for error in job.errors
    ]
    document["meta"] = dict(job.meta)
    return document


class Listing(click.Group):
    """A command group such as `perdure jobs`. Without a subcommand it runs `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
