"""Reads jobs by id, lists them page by page, and counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.job import ANY, State
from perdure.core.record import Record
from perdure.storage.contract import Filter
from perdure.storage.rules.filters import Position, cursor_of, spellings

from ..connection.operations import Steps, aggregate, find
from ..upkeep import lease_batches
from ..upkeep.unreadable import shown
from ..writing.updates import AT_ONCE
from .records import ALL, WHOLE, Document

NEWEST_FIRST = {"created_at": -1, "_id": -1}


def get(ids: Sequence[str], now: int) -> Steps[list[Record | None]]:
    found = yield from find("jobs", {"_id": {"$in": list(set(ids))}}, WHOLE)
    records = {record.id: record for record in shown(found, now)}
    return [records.get(id) for id in ids]


def page(filter: Filter, limit: int, after: Position | None, now: int) -> Steps[tuple[list[Record], str | None]]:
    """A page of jobs, newest first, and the cursor of the next one."""
    fitting = conditions(filter)
    if after is not None:
        created_at, id = after
        fitting.append({"created_at": {"$lte": created_at}})
        fitting.append({"$or": [{"created_at": {"$lt": created_at}}, {"_id": {"$lt": id}}]})
    held = yield from _held(filter)
    if held is not None and len(held) <= AT_ONCE:
        fitting.append({"_id": {"$in": held}})
    elif not any("marks" in condition for condition in fitting):
        fitting.append({"marks": ALL})  # whose index knows the order
    found = yield from find("jobs", {"$and": fitting}, WHOLE, sort=NEWEST_FIRST, limit=limit + 1)
    records = shown(found[:limit], now)
    more = len(found) > limit and records
    return records, cursor_of(records[-1]) if more else None


def count(filter: Filter) -> Steps[int]:
    held = yield from _held(filter)
    if held is None:
        return (yield from _count(conditions(filter)))
    jobs = 0
    for begin in range(0, len(held), AT_ONCE):
        jobs += yield from _count([*conditions(filter), {"_id": {"$in": held[begin : begin + AT_ONCE]}}])
    return jobs


def only_running(filter: Filter) -> bool:
    return filter.states is not None and set(filter.states) == {State.RUNNING}


def _held(filter: Filter) -> Steps[list[str] | None]:
    """Where running jobs are asked for, all jobs that may be running. Use it in one transaction with what depends on it."""
    return (yield from lease_batches.held()) if only_running(filter) else None


def _count(fitting: list[Document]) -> Steps[int]:
    counted = yield from aggregate("jobs", [{"$match": {"$and": fitting}}, {"$count": "jobs"}])
    return counted[0]["jobs"] if counted else 0


def conditions(filter: Filter) -> list[Document]:
    """The conditions that a job must meet. Marks are added beside the fields that they come from, so that the index is
    used."""
    fitting: list[Document] = [{"hidden": None}]
    if filter.states is not None:
        fitting += _states(filter.states)
    for name in ("task", "queue"):
        if getattr(filter, name) is not None:
            fitting.append({name: getattr(filter, name)})
    if filter.key is not None:
        fitting.append({"marks": f"k{filter.key}"})
    if filter.tag is not None:
        fitting.append({"marks": f"t{filter.tag}"})
    if filter.tenant is not None:
        below = {"$gte": f"{filter.tenant}/", "$lt": f"{filter.tenant}0"}  # 0 comes right after /
        fitting.append({"$or": [{"tenant": filter.tenant}, {"tenant": below}]})
    if filter.routing is not ANY:
        fitting.append({"routing_key": filter.routing})
    if filter.chain_id is not None:
        fitting.append({"$or": [{"marks": f"c{filter.chain_id}"}, {"_id": filter.chain_id, "chain_id": None}]})
    if filter.since is not None:
        fitting.append({"created_at": {"$gte": filter.since}})
    if filter.before is not None:
        fitting.append({"created_at": {"$lt": filter.before}})
    if filter.text is not None:
        fitting.append(_mentions(filter.text))
    return fitting


def _states(states: Sequence[State]) -> list[Document]:
    names = sorted({state.value for state in states})
    fitting: list[Document] = [{"state": {"$in": names}}]
    if names == ["dead"]:
        fitting.append({"marks": "d"})
    return fitting


def _mentions(text: str) -> Document:
    """Search for a text, not a pattern, ignoring the case of ASCII letters (the server's $toLower knows no others)."""
    places: list[Any] = [
        {"$gte": [{"$indexOfBytes": [{"$toLower": _text_in(name)}, {"$literal": _ascii_lower(each)}]}, 0]}
        for each in spellings(text)
        for name in ("payload", "key", "reason", "errors")
    ]
    return {"$expr": {"$or": places}}


def _text_in(name: str) -> Document:
    """The text in a field; empty if the field is missing or holds anything else, which the server would refuse to
    search."""
    return {"$cond": [{"$eq": [{"$type": f"${name}"}, "string"]}, f"${name}", ""]}


def _ascii_lower(text: str) -> str:
    return "".join(char.lower() if char.isascii() else char for char in text)
