"""What is written down about a run: events by the programs themselves, moves by the database, rows in the end."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.testing.checker import History, check, read_events

EFFECTS = "create table if not exists effects (job text not null, attempt integer not null)"
# The database itself writes down every change of a row, in the transaction that makes it.
MOVES = """
create table moves (
    number integer primary key, id text, was text, now text, attempt integer, stamp integer, settled integer,
    failures integer, losses integer, version integer, key text, holds_key integer, result_changed integer, worker text);
create trigger watch_inserts after insert on holdfast_jobs begin
    insert into moves (id, was, now, attempt, stamp, settled, failures, losses, version, key, holds_key,
        result_changed, worker)
    values (new.id, null, new.state, new.attempt, new.stamp, new.settled, new.failures, new.losses, new.version,
        new.unique_key, new.holds_key, 0, null);
end;
create trigger watch_updates after update on holdfast_jobs begin
    insert into moves (id, was, now, attempt, stamp, settled, failures, losses, version, key, holds_key,
        result_changed, worker)
    values (new.id, old.state, new.state, new.attempt, new.stamp, new.settled, new.failures, new.losses, new.version,
        new.unique_key, new.holds_key, new.result is not old.result,
        old.leased_by);
end;
"""


class Recorder:
    """Appends events to a file; each is one write, so that lines of many processes never mix, and what is
    written is there when its writer is killed the next moment."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def __call__(self, event: str, id: object = None, **more: Any) -> None:
        entry = {"event": event, "id": None if id is None else str(id), "pid": os.getpid(), "at": time.time(), **more}
        os.write(self._file, (json.dumps(entry) + "\n").encode())


class Scene:
    """One database file, its history, and the processes' outputs."""

    def __init__(self, folder: Path, scheme: str = "sqlite") -> None:
        self.folder = folder
        self.scheme = scheme
        self.path = folder / "jobs.db"
        self.url = f"{scheme}:///{self.path}"
        self.history = str(folder / "history.jsonl")
        self.record = Recorder(self.history)
        self._counted = 0
        self._counts: Counter[str] = Counter()

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.out"

    def count(self, kind: str) -> int:
        """How many events of a kind there are so far; reads only what is new."""
        with open(self.history, "rb") as file:
            file.seek(self._counted)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._counted += len(new)
        self._counts.update(json.loads(line)["event"] for line in new.splitlines())
        return self._counts[kind]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.history) if event["event"] == kind]

    def rows(self, table: str = "holdfast_jobs") -> list[dict[str, Any]]:
        """A table's rows, read when nobody writes any more."""
        connection = sqlite3.connect(self.path, timeout=10)
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f"select * from {table}")]
        except sqlite3.OperationalError as missing:
            if "no such table" in str(missing):
                return []
            raise
        finally:
            connection.close()

    def sound(self) -> None:
        """The file itself is whole."""
        connection = sqlite3.connect(self.path, timeout=10)
        try:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        finally:
            connection.close()

    def told(self, *, drained: bool = True) -> History:
        moves = sorted(self.rows("moves"), key=lambda move: move["number"])
        return History(read_events(self.history), self.rows(), self.rows("effects"), moves, drained)

    def judge(self, *, drained: bool = True) -> History:
        """Hold what happened against every promise."""
        self.sound()
        history = self.told(drained=drained)
        check(history)
        return history
