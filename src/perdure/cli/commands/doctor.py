"""`perdure doctor`: check a store and print what to do about problems."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict

import click

from ..doctor_checks import Check, examine
from ..output import json_option, print_json, printable
from ..root import FAILED
from ..target import app_of, store_options


@click.command("doctor")
@json_option
@store_options
def command(target: str | None, url: str | None, as_json: bool) -> None:
    """Check a store: its file, schema, durability, disk, clock, workers, dead letters, queues and tasks.

    With --app it also finds waiting jobs of tasks that the app does not have. Exit code 1 if a check fails.

    \b
    Examples:
      perdure doctor --app shop.app:app
      perdure doctor --url sqlite:///jobs.db --json
    """
    checks = asyncio.run(examine(app_of(target, url), with_tasks=target is not None))
    if as_json:
        print_json({"status": _worst(checks), "checks": [asdict(check) for check in checks]})
    else:
        _print(checks)
    if _worst(checks) == "fail":
        raise SystemExit(FAILED)


def _print(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        click.echo(f"{check.status:<4}  {check.name:<{width}}  {printable(check.found)}")
        if check.remedy:
            click.echo(f"{'':<4}  {'':<{width}}  → {printable(check.remedy)}")
    counts = Counter(check.status for check in checks)
    click.echo(f"\n{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed")


def _worst(checks: list[Check]) -> str:
    return max((check.status for check in checks), key=("ok", "warn", "fail").index)
