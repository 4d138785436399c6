"""A program that enqueues followers of jobs, told by lines on its standard input. Its arguments: URL HOW, where HOW is "own"
for the store's own connection, "caller" for a transaction of the program's own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure import Perdure

from ..crashes.databases import database_of


@contextmanager
def transactions(url: str) -> Iterator[Any]:
    """Gives a context manager: a connection or session inside a transaction, committed at its end."""
    if url.startswith("mongodb"):
        from pymongo import MongoClient

        with MongoClient(url) as client, client.start_session() as session:
            yield lambda: _in_session(session)
    else:
        caller = database_of(url).caller()
        yield lambda: _in_transaction(caller)
        caller.close()


@contextmanager
def _in_session(session: Any) -> Iterator[Any]:
    with session.start_transaction():
        yield session


@contextmanager
def _in_transaction(caller: Any) -> Iterator[Any]:
    caller.begin()
    yield caller.connection
    caller.end(keep=True)


async def main(url: str, how: str) -> None:
    app = Perdure(url)

    @app.task
    async def follow() -> None: ...

    async def own(order: dict[str, Any]) -> str:
        await asyncio.sleep(order["wait"])
        return str((await follow.using(after=[order["after"]], run_when=order["run_when"]).enqueue()).id)

    async def in_callers(order: dict[str, Any]) -> str:
        with transaction() as connection:
            task = follow.using(after=[order["after"]], run_when=order["run_when"], connection=connection)
            child = await task.enqueue()
            await asyncio.sleep(order["wait"])
            return str(child.id)

    async with app:
        await app.jobs.count()
        with transactions(url) if how == "caller" else contextmanager(lambda: (yield))() as transaction:
            print("ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                print(await (in_callers if how == "caller" else own)(json.loads(line)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
