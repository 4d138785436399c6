"""Collections and indexes, and the ledger that knows which of them were made.

A migration can be run again without harm: it leaves what exists as it is, and stores its version last. So two migrators at
once are safe, and a migration that was interrupted, or whose index somebody dropped, is simply run again.
"""

from __future__ import annotations

import json
from importlib.resources import files
from secrets import token_hex
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from perdure.errors import StoreError
from perdure.storage.migrations import Migration, migrations_in, version_in

from .address import MongoAddress
from .connection.errors import error_for
from .connection.operations import PREFIX
from .connection.server import CODEC, DEFAULTS, MAJORITY, refuse_bad_options

META = f"{PREFIX}meta"
ALREADY_THERE = 48
CONFLICTS = (85, 86, 11000)


def load_migrations() -> list[Migration]:
    return migrations_in(files(__package__) / "migrations", ".json")


def connect(address: MongoAddress) -> MongoClient[dict[str, Any]]:
    """A blocking client, for the ledger."""
    options = {name: value for name, value in DEFAULTS.items() if name not in address.options}
    with refuse_bad_options(address):
        return MongoClient(address.url, **options)  # type: ignore[arg-type]


class MongoLedger:
    """The ledger in the collection perdure_meta."""

    made_of = "collections"

    def __init__(self, client: MongoClient[dict[str, Any]], address: MongoAddress) -> None:
        self._database = client.get_database(address.database, CODEC, write_concern=MAJORITY)
        self._address = address

    def __str__(self) -> str:
        return str(self._address)

    def version(self) -> int:
        try:
            return self._version()
        except PyMongoError as error:
            raise error_for(error, self._address) from error

    def run(self, migration: Migration) -> bool:
        try:
            self._mark_as_ours()
            for step in json.loads(migration.text):
                self._make(step)
            stored = {"_id": "schema", "version": {"$lt": migration.number}}
            return self._database[META].update_one(stored, {"$set": {"version": migration.number}}).modified_count == 1
        except PyMongoError as error:
            raise error_for(error, self._address) from error

    def _version(self) -> int:
        """A step of which an index is missing counts as not run."""
        ours = {name for name in self._database.list_collection_names() if name.startswith(PREFIX)}
        stored = self._database[META].find_one({"_id": "schema"}) if META in ours else None
        if stored is None:
            if ours - {META}:  # which another process may be making: it is there a moment before its first document
                raise StoreError(
                    f"{self._address} has collections that are named as Perdure's but were not made by it "
                    f"({', '.join(sorted(ours))}): rename them, or use another database"
                )
            return 0
        version = version_in(stored.get("version"), self._address)
        for migration in load_migrations()[:version]:
            if missing_of(migration, self._indexes(migration)):
                return migration.number - 1
        return version

    def _indexes(self, migration: Migration) -> dict[str, set[str]]:
        names = [step["collection"] for step in json.loads(migration.text)]
        return {name: set(self._database[PREFIX + name].index_information()) for name in names}

    def _mark_as_ours(self) -> None:
        """Say that what is about to be made is ours."""
        fresh = {"version": 0, "identity": token_hex(16)}
        self._database[META].update_one({"_id": "schema"}, {"$setOnInsert": fresh}, upsert=True)

    def _make(self, step: dict[str, Any]) -> None:
        """Make a collection; one with indexes comes with them."""
        collection = PREFIX + step["collection"]
        indexes = [{name: part for name, part in index.items() if name != "about"} for index in step["indexes"]]
        try:
            if indexes:
                self._database.command({"createIndexes": collection, "indexes": indexes})
            else:
                self._database.create_collection(collection, check_exists=False)
        except OperationFailure as error:
            if error.code == ALREADY_THERE:
                return
            if error.code not in CONFLICTS:
                raise
            raise StoreError(
                f"{self._address}: the indexes of {collection} cannot be made, what is there already is in the way: "
                f"{error.details.get('errmsg') if error.details else error}; drop it, or use another database"
            ) from error


def missing_of(migration: Migration, found: dict[str, set[str]]) -> list[str]:
    """The indexes of a step that are not there."""
    return [
        f"{PREFIX}{step['collection']}.{index['name']}"
        for step in json.loads(migration.text)
        for index in step["indexes"]
        if index["name"] not in found.get(step["collection"], set())
    ]
