"""What is written down about a run: events by the programs themselves, moves by the database, rows in the end."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from perdure.testing.checker import History, check, read_events

from .databases import database_of


class Recorder:
    """Appends events to a file; each is one write, so that lines of many processes never mix, and what is
    written is there when its writer is killed the next moment."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def __call__(self, event: str, id: object = None, **more: Any) -> None:
        entry = {"event": event, "id": None if id is None else str(id), "pid": os.getpid(), "at": time.time(), **more}
        os.write(self._file, (json.dumps(entry) + "\n").encode())


class Tally:
    """How many events of a kind there are so far; reads only what is new."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0
        self._counts: Counter[str] = Counter()

    def count(self, kind: str) -> int:
        with open(self._path, "rb") as file:
            file.seek(self._read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        self._counts.update(json.loads(line)["event"] for line in new.splitlines())
        return self._counts[kind]


class Scene:
    """One database, its history, and the processes' outputs."""

    def __init__(self, folder: Path, scheme: str = "sqlite") -> None:
        self.folder = folder
        self.scheme = scheme
        self.url = f"{scheme}:///{folder / 'jobs.db'}" if scheme.startswith("sqlite") else _on_a_server(scheme)
        self.database = database_of(self.url)
        self.history = str(folder / "history.jsonl")
        self.record = Recorder(self.history)
        self.count = Tally(self.history).count

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.out"

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.history) if event["event"] == kind]

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """The jobs, or a table's rows, read when nobody writes any more."""
        return self.database.rows(table)

    def told(self, *, drained: bool = True) -> History:
        moves = sorted(self.rows("moves"), key=lambda move: move["number"])
        return History(read_events(self.history), self.rows(), self.rows("effects"), moves, drained)

    def judge(self, *, drained: bool = True) -> History:
        """Hold what happened against every promise."""
        self.database.sound()
        history = self.told(drained=drained)
        check(history)
        return history


def _on_a_server(kind: str) -> str:
    from tests.support.real_servers import server  # no business of the processes that are killed

    return server(kind).fresh()
