"""A caller's database with an outbox, an app whose store is elsewhere, and short forms for what tests do with both."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager

from perdure import Perdure
from perdure.storage.urls import parse
from tests.support.addresses import address
from tests.support.real_servers import server


class Scene:
    """`outbox` and `target` are names of stores as in `tests/support/addresses.py`."""

    def __init__(self, folder, outbox, target, **options):
        self.folder = folder
        self.kind = outbox
        self.outbox = f"sqlite:///{folder}/shop.db" if outbox == "sqlite" else address(outbox, folder)
        self.target = address(target, folder)
        self.app = self.another(**options)
        self.task = add_task(self.app)

    def another(self, **options):
        """One more app with the same outbox and the same store, as another process has it."""
        return Perdure(self.target, outbox=self.outbox, **options)

    def connect(self, **options):
        """A connection of the caller's own."""
        if self.kind == "postgres":
            import psycopg

            return psycopg.connect(server("postgres").url, **options)
        return sqlite3.connect(parse(self.outbox).path, timeout=10, **options)

    @contextmanager
    def transaction(self, *, commit=True):
        """A transaction of the caller's own, in which it writes before anything else."""
        with closing(self.connect()) as database:
            yield database
            database.commit() if commit else database.rollback()

    @property
    def table(self):
        return f"{self.outbox.rpartition('schema=')[2]}.perdure_outbox" if self.kind == "postgres" else "perdure_outbox"

    def rows(self, what="number", which="true"):
        with closing(self.connect()) as database:
            return [
                row[0] for row in database.execute(f"select {what} from {self.table} where {which} order by number")
            ]

    def poison(self, text, *, queue="default"):
        """A row that no caller of ours has written."""
        with self.transaction() as database:
            mark = "%s" if self.kind == "postgres" else "?"
            columns = "enqueued_at, min_version, id, queue, job"
            database.execute(f"insert into {self.table} ({columns}) values (1, 1, 'x', '{queue}', {mark})", (text,))

    async def open_outbox(self, app=None):
        return await (app or self.app)._runtime.loops.outboxes.get()


def add_task(app):
    @app.task
    async def task(a: object = 0) -> object:
        return a

    return task
