"""Notes: small documents of several kinds in one collection. Each is found by its id, which begins with its kind.

    unresolved/…   a job whose edges must be resolved, or that waits for its share        oldest first
    wakeup/…       news for claims under limits                                           oldest first
    holder/KEY     the job that holds a unique key
    starts/KEY     when jobs started under a key with a rate
    account/…      the rank of a tenant's last job in a fair queue
    floor/…        the rank at which new tenants of the queue begin
    wakeup, wakeup+, wakeup-   written by claims under limits: see `limit_turns`

Notes of the first two kinds are only inserted and removed, so they cause no write conflicts.
"""

from __future__ import annotations

from collections.abc import Iterable

from bson import ObjectId

from ..connection.operations import Steps, delete, find, insert
from ..reading.records import Document

WAKEUP = "wakeup"
TURNS = (WAKEUP, f"{WAKEUP}+")
MET = f"{WAKEUP}-"


def kind(name: str) -> Document:
    """The condition for the ids of one kind: its name, then a slash (0 is the character after the slash)."""
    return {"$gte": f"{name}/", "$lt": f"{name}0"}


def add(name: str, documents: Iterable[Document]) -> Steps[list[str]]:
    """Add notes that are read oldest first; returns their ids."""
    added = [{"_id": f"{name}/{ObjectId()}", **document} for document in documents]
    yield from insert("notes", added)
    return [document["_id"] for document in added]


def first(name: str, limit: int) -> Steps[list[Document]]:
    return (yield from find("notes", {"_id": kind(name)}, sort={"_id": 1}, limit=limit))


def remove_notes(ids: Iterable[str]) -> Steps[None]:
    if gone := list(ids):
        yield from delete("notes", {"_id": {"$in": gone}})
