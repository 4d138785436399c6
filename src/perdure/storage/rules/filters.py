"""Filters and cursors, in one place for every store that filters records in Python."""

from __future__ import annotations

import json
import re
from string import ascii_lowercase, ascii_uppercase
from typing import Annotated

import msgspec

from ...core.job import ANY
from ...core.record import Record
from ...errors import InvalidCall
from ..contract import Filter

Position = tuple[int, str]  # created_at and id of a job

_Instant = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_ID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ODD = "!"  # begins an id in a cursor that is no id of ours: a listing shows rows that cannot be read, too
_Id = Annotated[str, msgspec.Meta(pattern=f"^(?:{_ID.pattern}$|{_ODD})")]
_position = msgspec.json.Decoder(tuple[_Instant, _Id]).decode

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def fits(record: Record, filter: Filter) -> bool:
    return (
        not record.hidden
        and (filter.states is None or record.state in filter.states)
        and (filter.task is None or record.task == filter.task)
        and (filter.queue is None or record.queue == filter.queue)
        and (filter.tenant is None or _belongs(record.tenant, filter.tenant))
        and (filter.key is None or record.key == filter.key)
        and (filter.tag is None or filter.tag in _tags(record.tags))
        and (filter.routing is ANY or record.routing_key == filter.routing)
        and (filter.chain_id is None or (record.chain_id or record.id) == filter.chain_id)
        and (filter.since is None or record.created_at >= filter.since)
        and (filter.before is None or record.created_at < filter.before)
        and (filter.text is None or _mentions(record, filter.text))
    )


def parse_cursor(cursor: str | None, *, odd_ids: bool = True) -> Position | None:
    """Where the last page ended; InvalidCall for a text that is no cursor. `odd_ids`: a stored row may have any id."""
    if cursor is None:
        return None
    try:
        created_at, id = _position(cursor)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise _not_ours(cursor) from None
    if id.startswith(_ODD) and not odd_ids:
        raise _not_ours(cursor)
    return created_at, id.removeprefix(_ODD)


def _not_ours(cursor: str) -> InvalidCall:
    return InvalidCall(f"cursor {cursor!r} is not one that find() gave")


def cursor_of(record: Record) -> str:
    """The cursor of a page that ends with this record."""
    usual = _ID.fullmatch(record.id) is not None
    return json.dumps([record.created_at, record.id if usual else _ODD + record.id])


def spellings(text: str) -> tuple[str, ...]:
    """The forms of a text in the fields of a job: as it is, and as JSON writes it in a payload or an error."""
    written = msgspec.json.encode(text).decode()[1:-1]
    return (text,) if written == text else (text, written)


def _tags(text: str | None) -> list[object]:
    try:
        return [] if text is None else msgspec.json.decode(text, type=list[object])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []


def _belongs(tenant: str | None, wanted: str) -> bool:
    return tenant is not None and (tenant == wanted or tenant.startswith(f"{wanted}/"))


def _mentions(record: Record, text: str) -> bool:
    places = [
        place.translate(_LOWER)
        for place in (record.payload, record.key, record.reason, record.errors)
        if place is not None
    ]
    return any(each.translate(_LOWER) in place for each in spellings(text) for place in places)
