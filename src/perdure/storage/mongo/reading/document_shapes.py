"""The shapes of documents beside the jobs, so that a document of another program stops nobody.

`find` returns only documents with the shape of their collection. The store ignores the others until upkeep sets them aside
(see `unreadable`). The shape of jobs is `Record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Document = dict[str, Any]
Check = Callable[[Any], bool]
LARGEST = 1 << 62


def is_text(value: object) -> bool:
    """A text that is UTF-8; the driver marks other bytes by lone surrogates."""
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LARGEST <= value <= LARGEST and value == int(value)


def _is_sum(value: object) -> bool:
    """A number of jobs, so small that the sum of many fits into an integer of the server."""
    return is_number(value) and abs(int(value)) < 1 << 40  # type: ignore[call-overload]


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_name_of_text(value: object) -> bool:
    return isinstance(value, dict) and is_text(value.get("kind")) and is_text(value.get("name"))


def _is_one_of(*values: object) -> Check:
    return lambda value: isinstance(value, str) and value in values


_ID: dict[str, Check] = {"_id": is_text}
# by collection: what each document has, then what it may have
_SHAPES: dict[str, tuple[dict[str, Check], dict[str, Check]]] = {
    "places": (
        _ID | {"place": is_text, "order": is_number},
        {"tie": is_number, "line": is_text, "expires_at": is_number, "run_at": is_number},
    ),
    "batches": (_ID | {"kind": is_text, "at": is_number, "ids": _is_list_of_texts}, {"given": is_number}),
    "keys": (_ID | {"job": is_text, "ends": _optional(is_number)}, {}),
    "logs": (_ID | {"lines": _is_list_of_texts}, {}),
    "queues": (
        _ID,
        {
            "paused": _is_flag,
            "max_depth": _optional(is_number),
            "on_full": _is_one_of("reject", "drop", "wait"),
            "drop_below": _optional(is_number),
            "fair": _is_flag,
            "weights": _optional(is_text),
        },
    ),
    "workers": (_ID | {"started_at": is_number, "seen_at": is_number, "running": is_number, "about": is_text}, {}),
    "edges": (_ID | {"parent": is_text, "child": is_text, "run_when": is_text}, {"open": _is_flag}),
    "gates": (
        _ID
        | {
            "queue": is_text,
            "limits": is_text,
            "task": is_text,
            "routing_key": _optional(is_text),
            "min_version": is_number,
            "suspect": is_number,
            "shut_by": _optional(is_text),
            "at": is_number,
        },
        {},
    ),
    "slots": (_ID | {"limits": is_text, "keys": _is_list_of_texts}, {"jobs": _is_sum}),
    "kv": ({"_id": _is_name_of_text, "text": is_text, "version": is_number}, {"due_at": is_number, "job": is_text}),
}
_NOTES: dict[str, tuple[dict[str, Check], dict[str, Check]]] = {
    "unresolved": (
        _ID | {"job": is_text, "what": _is_one_of("edges", "share", "make", "loose")},
        {"made": is_number},
    ),
    "wakeup": (_ID, {"gate": is_text, "key": is_text}),
    "holder": (_ID | {"job": is_text}, {}),
    "starts": (_ID | {"text": is_text}, {"over": is_number}),
    "account": (_ID | {"rank": is_number}, {}),
    "floor": (_ID | {"rank": is_number}, {}),
}
# the notes of turns have no name behind their kind
_TURN: tuple[dict[str, Check], dict[str, Check]] = (_ID | {"at": is_number}, {"by": is_text})
SHAPED = (*_SHAPES, "notes")


def flaws_in(collection: str, document: Mapping[str, Any], projection: Mapping[str, Any] | None = None) -> list[str]:
    """The fields of a document that are missing or wrong. `projection`: what was read, if not everything."""
    needed, optional = _shape_of(collection, document)
    if projection:
        needed = {name: check for name, check in needed.items() if _is_asked_for(name, projection)}
    flaws = [name for name, check in needed.items() if name not in document or not check(document[name])]
    return flaws + [name for name, check in optional.items() if name in document and not check(document[name])]


def well_formed(
    collection: str, documents: Iterable[Document], projection: Mapping[str, Any] | None = None
) -> list[Document]:
    """Those of these documents that have the shape of their collection."""
    return [each for each in documents if not flaws_in(collection, each, projection)]


def _shape_of(collection: str, document: Mapping[str, Any]) -> tuple[dict[str, Check], dict[str, Check]]:
    if collection != "notes":
        return _SHAPES[collection]
    id = document.get("_id")
    if not isinstance(id, str):
        return _ID, {}
    kind, slash, _ = id.partition("/")
    kind = kind.rstrip("+-")
    if kind == "wakeup" and not slash:
        return _TURN
    return _NOTES.get(kind, ({"_id": lambda _: False}, {}))


def _is_asked_for(name: str, projection: Mapping[str, Any]) -> bool:
    if name == "_id":
        return projection.get("_id") != 0
    return projection.get(name) == 1 if any(projection[each] for each in projection) else name not in projection
