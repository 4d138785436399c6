"""The same for the stores that have no SQL: their jobs are read through the store, and no trigger writes moves down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from perdure.core.job import WAITING, State
from perdure.storage.contract import Filter, Storage
from perdure.storage.urls import opener

_UNFINISHED = Filter(states=(*sorted(WAITING), State.RUNNING))


async def rows_of(storage: Storage) -> list[dict[str, Any]]:
    """Every job of a store, field by field."""
    rows: list[dict[str, Any]] = []
    after = None
    while page := await storage.export(after, 500):
        rows += [msgspec.structs.asdict(each.record) for each in page]
        after = (page[-1].record.created_at, page[-1].record.id)
    return rows


class _ThroughTheStore:
    watches_moves = writes_by_thread = False
    effect = ""

    def __init__(self, url: str) -> None:
        self._url = url

    def prepare(self, *, watch: bool) -> None:
        pass

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        return self._asked(rows_of) if table is None else []

    def held_by(self, worker: str) -> list[tuple[str, int]] | None:
        async def held(storage: Storage) -> list[tuple[str, int]]:
            running, _ = await storage.find(Filter(states=(State.RUNNING,)), 500, None)
            return [(record.id, record.losses) for record in running if record.leased_by == worker]

        return self._asked(held)

    def locked_by(self, pids: Collection[int]) -> bool:
        return False  # a stopped client keeps nothing locked but its own jobs

    def unfinished(self) -> int:
        return self._asked(lambda storage: storage.count(_UNFINISHED))

    def sound(self) -> None:
        """Every job that a listing shows can be read by its id."""

        async def look(storage: Storage) -> list[str]:
            ids = [row["id"] for row in await rows_of(storage)]
            found = [each for start in range(0, len(ids), 500) for each in await storage.get(ids[start : start + 500])]
            return [id for id, record in zip(ids, found, strict=True) if record is None or record.id != id]

        assert self._asked(look) == []

    def caller(self) -> Any:
        raise NotImplementedError("no connection of a caller's own takes part in this store's transactions")

    def _asked(self, ask: Callable[[Storage], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            storage = opener(self._url)()
            await storage.open()
            try:
                return await ask(storage)
            finally:
                await storage.close()

        return asyncio.run(main())


class Redis(_ThroughTheStore):
    writes_effects = False

    async def write_effect(self, tx: Any, job: str, attempt: int) -> None:
        raise NotImplementedError("Redis has no transaction for a handler")


class Mongo(_ThroughTheStore):
    writes_effects = True

    async def write_effect(self, tx: Any, job: str, attempt: int) -> None:
        session = tx.connection
        effects = session.client.get_default_database()["effects"]
        await effects.insert_one({"job": job, "attempt": attempt}, session=session)

    def prepare(self, *, watch: bool) -> None:
        with self._client() as client:
            for name in ("effects", "orders"):  # not by many transactions at once
                client.get_default_database().create_collection(name)

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        if table is None:
            return super().rows()
        with self._client() as client:
            return list(client.get_default_database()[table].find({}))

    def caller(self) -> MongoCaller:
        return MongoCaller(self._client())

    def _client(self) -> Any:
        from pymongo import MongoClient

        return MongoClient(self._url)


class MongoCaller:
    """A session of a program of its own, with a collection `orders`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.connection = client.start_session()

    def begin(self) -> None:
        self.connection.start_transaction()

    def order(self, job: str) -> None:
        self._client.get_default_database()["orders"].insert_one({"job": job}, session=self.connection)

    def end(self, *, keep: bool) -> None:
        self.connection.commit_transaction() if keep else self.connection.abort_transaction()

    def close(self) -> None:
        self.connection.end_session()
        self._client.close()
