"""The collection of small things: each is found by its id alone, which begins with what kind of thing it is.

    unresolved/…   a job whose edges are to be looked at, or that waits for its share      as they came
    wakeup/…       what a claim under limits has to hear of                                as they came
    holder/KEY    the job that holds a unique key
    starts/KEY    when jobs started under a key with a rate
    account/…     the rank of a tenant's last job in a fair queue
    floor/…       where its new tenants begin
    wakeup         written by every claim under limits, so that one comes after the other (see `limit_turns`)
    wakeup+        the same
    wakeup-        that two of them have met

Those that come in order are only ever inserted and removed, so that nobody meets anybody there.
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
    """The condition on ids for all things of a kind: its name, then a slash (and 0 comes right after a slash)."""
    return {"$gte": f"{name}/", "$lt": f"{name}0"}


def add(name: str, documents: Iterable[Document]) -> Steps[list[str]]:
    """Add things that come in order; gives their ids."""
    added = [{"_id": f"{name}/{ObjectId()}", **document} for document in documents]
    yield from insert("notes", added)
    return [document["_id"] for document in added]


def first(name: str, limit: int) -> Steps[list[Document]]:
    return (yield from find("notes", {"_id": kind(name)}, sort={"_id": 1}, limit=limit))


def remove_notes(ids: Iterable[str]) -> Steps[None]:
    if gone := list(ids):
        yield from delete("notes", {"_id": {"$in": gone}})
