"""The fuzzer's hand on a MongoDB server: every field of every document of ours."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from bson import Binary, ObjectId, encode
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from perdure.core.record import NewJob
from perdure.storage.contract import Storage, Unreadable
from perdure.storage.urls import parse

from .target import Missing, Mutation, Refused, Target
from .values import BYTES, NUMBERS, TEXTS

BY_JOB = {"jobs": "_id", "places": "_id", "logs": "_id", "edges": "child"}
OWNERS = {"kv": "job", "notes": "job", "keys": "job"}  # fields with the job that a document belongs to
GONE = object()
_TOLERANT = CodecOptions(RawBSONDocument, unicode_decode_error_handler="surrogateescape")
ODD: dict[str, Any] = {
    "missing": GONE,
    "null": None,
    "true": True,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "double": 1e300,
    "nested": {"a": {"b": 1}},
    "list": [1, "a", None],
    "list of texts": ["a", "b"],
    "empty list": [],
    "binary": Binary(b"\xff\xfe", 0),
    "id": ObjectId(),
    "date": datetime(2020, 1, 1),
}
IDS: dict[str, Any] = {
    "number": 5,
    "object": {"a": 1},
    "binary": Binary(b"\xff"),
    "word": "nonsense",
    "empty": "",
    "id": ObjectId(),
}


class MongoTarget(Target):
    at_once = 250
    short_lived = frozenset(("notes", "slots", "gates", "signals"))
    left_alone = {"meta": "test_ledger.py spoils it: without a readable version nobody opens the database"}

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self._client: MongoClient[dict[str, Any]] = MongoClient(url)
        tolerant: CodecOptions[dict[str, Any]] = CodecOptions(unicode_decode_error_handler="surrogateescape")
        self._database = self._client.get_database(parse(url).server.database, codec_options=tolerant)
        self._chance = random.Random(seed)

    def close(self) -> None:
        self._client.close()

    def rows(self) -> dict[str, int]:
        names = sorted(name for name in self._database.list_collection_names() if name.startswith("perdure_"))
        return {name.removeprefix("perdure_"): self._database[name].count_documents({}) for name in names}

    def mutations(self) -> list[Mutation]:
        found: list[Mutation] = []
        for name in self.rows():
            if name not in self.left_alone:
                found += self._of_fields(name)
                found += [
                    self._shared(f"{name}.foreign", value, partial(self._insert, name, id)) for value, id in IDS.items()
                ]
        return found

    async def seed(self, store: Storage, followers: Sequence[NewJob], parents: Sequence[str]) -> None:
        """A caller's own transaction leaves edges to be resolved."""
        with self._client.start_session() as session, session.start_transaction():
            store.caller_session(followers).enqueue_blocking(session)
        row = msgspec.json.encode(Unreadable("a row", 1, "seed", (), "{}")).decode()
        self._database["perdure_unreadable"].replace_one(
            {"_id": "seed/a row"}, {"job": "a row", "at": Int64(1), "text": row}, upsert=True
        )

    def _of_fields(self, collection: str) -> Iterator[Mutation]:
        fields = {field for each in self._database[f"perdure_{collection}"].find() for field in each if field != "_id"}
        values = {**ODD, **{name: _number(value) for name, value in NUMBERS.items()}, **TEXTS}
        values = {name: value for name, value in values.items() if name not in ("1 MB",)}
        for field in sorted(fields):
            for name, value in values.items():
                yield self._mutation(
                    collection, f"{collection}.{field}", name, partial(self._set, collection, field, value)
                )
            for name, text in BYTES.items():
                yield self._mutation(
                    collection, f"{collection}.{field}", name, partial(self._bytes, collection, field, text)
                )

    # -- below ---------------------------------------------------------------------------------------
    def _mutation(self, collection: str, where: str, value: str, write: Callable[[Any], None]) -> Mutation:
        def of_job(job: str) -> str:
            key = BY_JOB[collection]
            document = self._database[f"perdure_{collection}"].find_one({key: job}, {"_id": 1})
            if document is None:
                raise Missing
            with _refused():
                write(document["_id"])
            return job

        def of_any(job: str) -> str | None:
            field = where.partition(".")[2]
            owner = OWNERS.get(collection, "job")
            there = self._database[f"perdure_{collection}"]
            found = [*there.find({field: {"$exists": True}}, {"_id": 1, owner: 1}, limit=200)]
            if not found:
                raise Missing
            document = self._chance.choice(found)
            with _refused():
                write(document["_id"])
            spoiled = document.get(owner)
            return spoiled if isinstance(spoiled, str) else None

        if collection in BY_JOB:
            return Mutation(where, value, of_job)
        return Mutation(where, value, of_any, of_job=False)

    def _shared(self, where: str, value: str, write: Callable[[], None]) -> Mutation:
        def of_none(job: str) -> None:
            with _refused():
                write()

        return Mutation(where, value, of_none, of_job=False)

    def _set(self, collection: str, field: str, value: Any, id: Any) -> None:
        change = {"$unset": {field: ""}} if value is GONE else {"$set": {field: value}}
        self._database[f"perdure_{collection}"].update_one({"_id": id}, change)

    def _bytes(self, collection: str, field: str, text: bytes, id: Any) -> None:
        """The driver writes no text that is not UTF-8: the bytes are put into an encoded document."""
        documents = self._database[f"perdure_{collection}"]
        document = documents.find_one({"_id": id})
        if document is None:
            raise Missing
        stand_in = "@" * len(text)
        spoiled = encode({**document, field: stand_in}).replace(stand_in.encode(), text)
        documents.replace_one({"_id": id}, RawBSONDocument(spoiled, _TOLERANT))

    def _insert(self, collection: str, id: Any) -> None:
        name = id if isinstance(id, str | int | dict) else type(id)(id) if isinstance(id, Binary) else ObjectId()
        self._database[f"perdure_{collection}"].replace_one({"_id": name}, {"foreign": 1}, upsert=True)


class _refused:
    """The server takes a value not everywhere: where an index forbids it, or a transaction writes just now."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, PyMongoError | OverflowError | UnicodeEncodeError):
            raise Refused(str(error)) from error


def _number(value: object) -> object:
    return Int64(value) if isinstance(value, int) else value
