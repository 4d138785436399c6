"""Who holds which unique key of scope waiting or active: a note for each key, under its own id.

Two jobs cannot have the same note, and who writes one that somebody else has written meanwhile meets a conflict: so no index
of the jobs has to be unique. A job knows that it holds its key (`holds_key`); whoever moves it says so here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.record import Record

from ..connection.operations import Steps, delete, find, update

_HOLDER = "holder/"


def holders(keys: Iterable[str]) -> Steps[dict[str, str]]:
    """The jobs that hold these keys, by key."""
    ids = [_HOLDER + key for key in sorted(set(keys))]
    found = (yield from find("notes", {"_id": {"$in": ids}})) if ids else []
    return {note["_id"].removeprefix(_HOLDER): note["job"] for note in found}


def write_key_changes(moves: Iterable[tuple[Record, Record]]) -> Steps[None]:
    """Note who gave up its key, and who took one. First those who give: another of the list may be the next."""
    differ = [after for before, after in moves if after.holds_key != before.holds_key]
    if given := [f"{_HOLDER}{record.unique_key}" for record in differ if not record.holds_key]:
        yield from delete("notes", {"_id": {"$in": given}})
    yield from take(differ)


def take(records: Sequence[Record]) -> Steps[None]:
    """Note the keys that jobs hold now."""
    taken = {f"{_HOLDER}{record.unique_key}": {"job": record.id} for record in records if record.holds_key}
    yield from update("notes", [{"q": {"_id": id}, "u": note, "upsert": True} for id, note in taken.items()])


def give_up(ids: Sequence[str]) -> Steps[None]:
    """Forget the keys of jobs that others are about to replace."""
    held = yield from find("jobs", {"_id": {"$in": list(ids)}, "holds_key": True}, {"unique_key": 1})
    if held:
        ours = [f"{_HOLDER}{document.get('unique_key')}" for document in held]
        yield from delete("notes", {"_id": {"$in": ours}})
