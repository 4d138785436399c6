"""A recorded history: what programs wrote down while they ran, and what the store held in the end.

- `events`: JSON objects, one per line, in the order in which they were written. Each has `event`, and most have `id`.
  acknowledged: a verb returned this id (with `key`, `scope` and `duplicate` if it had a unique key). rolled_back: this id
  was enqueued in a transaction that was rolled back. began and ended: a handler, with `attempt`, `pid` and `at` in seconds;
  began also has `limit` and `at_most` under a limit on running jobs. effect: a side effect of a handler. died: the handler
  raised `Dead`. cancelled, retried, deleted: an admin verb succeeded. killed: a `worker`, with the ids that it `held`.
- `rows`: the jobs in the store after all faults were over and everything had drained, column by column.
- `effects`: rows (`job`, `attempt`) that handlers wrote in the transaction of their completion.
- `moves`: where the store was watched, every committed change of a row: `id`, `was`, `now`, `attempt`, `stamp`,
  `accepted_stamp`, `failures`, `losses`, `version`, `key`, `holds_key`, and `worker`, whose hold ended by it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FINAL = frozenset({"succeeded", "skipped", "dead", "cancelled"})

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """The recorded events, and the rows in the end."""

    events: Sequence[Entry]
    rows: Sequence[Entry]
    effects: Sequence[Entry] = ()
    moves: Sequence[Entry] = ()
    drained: bool = True
    _by_kind: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list), repr=False)

    def __post_init__(self) -> None:
        for event in self.events:
            self._by_kind[event["event"]].append(event)

    def of_kind(self, kind: str) -> Sequence[Entry]:
        return self._by_kind.get(kind, ())

    def ids(self, kind: str) -> set[str]:
        return {event["id"] for event in self.of_kind(kind)}


def read_events(path: Path | str) -> list[dict[str, Any]]:
    """Read the events of a file, without a last line that its writer did not finish.

    >>> read_events("/nonexistent")
    []
    """
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def moves_by_job(history: History) -> dict[str, list[Entry]]:
    by_job: defaultdict[str, list[Entry]] = defaultdict(list)
    for move in history.moves:
        by_job[move["id"]].append(move)
    return dict(by_job)


def result_of(row: Entry) -> Any:
    text = row.get("result")
    return None if text is None else json.loads(text)


def name_of(row: Entry) -> str:
    return f"{row['id']} ({row.get('task', '?')})"


def counts(entries: Iterable[Entry], name: str) -> dict[str, int]:
    """Count how often each value of a field occurs.

    >>> counts([{"state": "dead"}, {"state": "dead"}], "state")
    {'dead': 2}
    """
    return dict(Counter(entry[name] for entry in entries))
