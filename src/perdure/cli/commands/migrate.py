"""`perdure migrate`: bring a store's schema up to date, or print its version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..output import json_option, print_json
from ..root import FAILED
from ..target import app_of, store_options, url_of

if TYPE_CHECKING:
    from perdure.storage.migrations import Ledger, Migration

F = TypeVar("F", bound=Callable[..., Any])


def outbox_option(command: F) -> F:
    return click.option("--outbox", metavar="URL", help="The outbox in this database, instead of a store.")(command)


@click.group("migrate", invoke_without_command=True)
@click.option("--dry-run", is_flag=True, help="Print the SQL and run nothing.")
@outbox_option
@json_option
@store_options
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Bring a store's schema up to date: the same as `perdure migrate up`.

    Apps migrate by themselves, unless they are made with Perdure(migrate=False). Two migrations at once are safe.

    \b
    Examples:
      perdure migrate --url sqlite:///jobs.db
      perdure migrate --dry-run --app shop.app:app
      perdure migrate status --app shop.app:app
      perdure migrate --outbox postgresql://user@host/shop
    """
    if ctx.invoked_subcommand is None:
        _up(**options)
    elif any(options.values()):
        raise click.UsageError(f"options go behind the subcommand: perdure migrate {ctx.invoked_subcommand} …")


@command.command("up")
@click.option("--dry-run", is_flag=True, help="Print the SQL and run nothing.")
@outbox_option
@json_option
@store_options
def up(**options: Any) -> None:
    """Run the migrations that the store lacks.

    \b
    Examples:
      perdure migrate up --url sqlite:///jobs.db
      perdure migrate up --dry-run
    """
    _up(**options)


def _up(target: str | None, url: str | None, outbox: str | None, dry_run: bool, as_json: bool) -> None:
    from perdure.storage import migrations

    with _ledger(_address(target, url, outbox), make=not dry_run, outbox=outbox is not None) as (ledger, known):
        run = migrations.up(ledger, known, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "migrations": [_document(each, text=dry_run) for each in run]})
    elif dry_run:
        for each in run:
            click.echo(f"-- {_title(each)}\n{each.text.rstrip()}\n")
    else:
        for each in run:
            click.echo(f"migrated: {_title(each)}")
    if not run and not as_json:
        click.echo("nothing to do: the schema is up to date", err=dry_run)


@command.command("status")
@outbox_option
@json_option
@store_options
def status(target: str | None, url: str | None, outbox: str | None, as_json: bool) -> None:
    """Print the schema version and the pending migrations. Exit code 1 if there are any.

    \b
    Example:
      perdure migrate status --app shop.app:app
    """
    from perdure.storage import migrations

    with _ledger(_address(target, url, outbox), make=False, outbox=outbox is not None) as (ledger, known):
        found = migrations.status(ledger, known)
    if as_json:
        pending = [_document(each) for each in found.pending]
        print_json({"version": found.version, "newest": found.newest, "pending": pending})
    else:
        click.echo(f"schema version {found.version} of {found.newest}")
        for each in found.pending:
            click.echo(f"to be run: {_title(each)}")
    if found.pending:
        raise SystemExit(FAILED)


def _address(target: str | None, url: str | None, outbox: str | None) -> str:
    if outbox is not None:
        if target is not None or url is not None:
            raise click.UsageError("--outbox names a database of its own; leave --app and --url out")
        return outbox
    return url_of(url) if target is None else app_of(target, url).url


@contextmanager
def _ledger(url: str, *, make: bool, outbox: bool) -> Iterator[tuple[Ledger, list[Migration]]]:
    """Open the store's ledger and its migrations. If the file does not exist and `make` is false, open an empty temporary
    file instead."""
    from perdure.storage.urls import ledger, outbox_ledger, parse

    address = parse(url)
    with TemporaryDirectory(prefix="perdure-") as folder:
        if not make and address.path is not None and not address.path.exists():
            url = f"{address.scheme}:///{folder}/empty.db"
        opened, migrations, close = outbox_ledger(url) if outbox else ledger(url)
        try:
            yield opened, migrations
        finally:
            close()


def _title(migration: Migration) -> str:
    return f"{migration.number:04d} {migration.name}"


def _document(migration: Migration, *, text: bool = False) -> dict[str, object]:
    document: dict[str, object] = {"number": migration.number, "name": migration.name}
    return document | {"sql": migration.text} if text else document
