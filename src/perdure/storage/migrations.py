"""Numbered migrations, the same way for every store that has a schema.

A store's migrations are files `0001_name.sql` (or of another suffix) in a folder. Its ledger knows which number the schema
has and runs one migration in a transaction of its own, so two migrators at once are safe: the second finds it done.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Protocol

from perdure.errors import StoreError


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a schema."""

    number: int
    name: str
    text: str


class Ledger(Protocol):
    """Where a store notes what was run."""

    made_of: str  # for messages: tables, collections

    def __str__(self) -> str:
        """The store's name for messages, without secrets."""

    def version(self) -> int:
        """The number of the last migration that was run, 0 for none. StoreError when what is there is not ours."""

    def run(self, migration: Migration) -> bool:
        """Run one step and note it, whole or not at all. False: somebody else has run it meanwhile."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a schema."""

    version: int
    newest: int
    pending: tuple[Migration, ...]


def migrations_in(folder: Traversable, suffix: str = ".sql") -> list[Migration]:
    """The migrations of a folder, in order; a gap is a mistake."""
    found = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(suffix).partition("_")
        if file.name.endswith(suffix):
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations in {folder} are not numbered without gaps")
    return found


def status(ledger: Ledger, migrations: list[Migration]) -> Status:
    """What was run and what is to be run. StoreError for a schema that is newer than we know."""
    version, newest = ledger.version(), len(migrations)
    if version > newest:
        raise StoreError(
            f"{ledger} has schema version {version}, and this Perdure knows only up to {newest}: "
            "it was migrated by a newer Perdure; upgrade perdure here"
        )
    return Status(version, newest, tuple(migrations[version:]))


def up(ledger: Ledger, migrations: list[Migration], *, dry_run: bool = False) -> list[Migration]:
    """Run the migrations that are missing, and return them. A dry run only returns them."""
    pending = status(ledger, migrations).pending
    if dry_run:
        return list(pending)
    return [migration for migration in pending if ledger.run(migration)]


def check(ledger: Ledger, migrations: list[Migration]) -> None:
    """StoreError unless the schema is the one we know."""
    state = status(ledger, migrations)
    if state.version == 0:
        raise StoreError(f"{ledger} has no {ledger.made_of} of Perdure: run `perdure migrate`")
    if state.pending:
        raise StoreError(
            f"{ledger} has schema version {state.version}, and this Perdure needs {state.newest}: run `perdure migrate`"
        )


def version_in(noted: object, ledger: object) -> int:
    """The version that a ledger has noted. StoreError: what stands there is no version."""
    text = str(int(noted)) if isinstance(noted, float) and noted.is_integer() else str(noted)
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise StoreError(
            f"{ledger}: the version of its schema is unreadable ({text[:40]!r}); write the number of the last migration "
            "there, or restore a backup"
        )
    return int(text)
