"""Which job holds which unique key of scope waiting or active: one note for each key.

The id of the note contains the key, so two jobs cannot both have it, and two writers of one note conflict. The jobs need no
unique index for that. A job's own document has `holds_key`; every transaction that changes it updates the note.
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
    """Write which jobs gave up or took their keys. Removals come first: another job of the list may take the same key."""
    differ = [after for before, after in moves if after.holds_key != before.holds_key]
    if given := [f"{_HOLDER}{record.unique_key}" for record in differ if not record.holds_key]:
        yield from delete("notes", {"_id": {"$in": given}})
    yield from take(differ)


def take(records: Sequence[Record]) -> Steps[None]:
    """Write the holders of the keys that these jobs hold."""
    taken = {f"{_HOLDER}{record.unique_key}": {"job": record.id} for record in records if record.holds_key}
    yield from update("notes", [{"q": {"_id": id}, "u": note, "upsert": True} for id, note in taken.items()])


def give_up(ids: Sequence[str]) -> Steps[None]:
    """Remove the notes of jobs that are about to be replaced."""
    held = yield from find("jobs", {"_id": {"$in": list(ids)}, "holds_key": True}, {"unique_key": 1})
    if held:
        ours = [f"{_HOLDER}{document.get('unique_key')}" for document in held]
        yield from delete("notes", {"_id": {"$in": ours}})
