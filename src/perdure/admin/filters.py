"""Which jobs: the filter of `find`, `count`, `retry_all`, `purge` and `export`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, cast

from ..core.clock import instant_of
from ..core.ids import id_text
from ..core.job import JobId, Routing, State
from ..core.record import Record
from ..core.validation import check_key, check_name, check_routing
from ..errors import InvalidCall
from ..storage.contract import Filter, Storage

LARGEST_PAGE = 100_000


class JobFilter(TypedDict, total=False):
    """All that is given must fit."""

    state: State | Sequence[State]
    task: str
    queue: str
    tenant: str
    key: str
    tag: str
    routing_key: Routing
    chain_id: JobId | str
    text: str
    before: datetime
    since: datetime


_NAMES = ("task", "queue", "tenant", "tag")
_KNOWN = frozenset(JobFilter.__annotations__)


def filter_of(given: Mapping[str, Any]) -> Filter:
    """The filter as stores take it, each part checked."""
    if unknown := given.keys() - _KNOWN:
        raise InvalidCall(f"there is no filter {min(unknown)!r}; there are {', '.join(sorted(_KNOWN))}")
    fields: dict[str, Any] = {name: check_name(given[name], name) for name in _NAMES if name in given}
    if "state" in given:
        fields["states"] = _states(given["state"])
    if "key" in given:
        fields["key"] = check_key(given["key"])
    if "routing_key" in given:
        fields["routing"] = check_routing(given["routing_key"])
    if "chain_id" in given:
        fields["chain_id"] = id_text(given["chain_id"], "chain_id")
    if "text" in given:
        fields["text"] = _check_text(given["text"])
    for name in ("since", "before"):
        if name in given:
            fields[name] = instant_of(given[name], name)
    return Filter(**fields)


def check_limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidCall(f"limit must be a whole number between 1 and {LARGEST_PAGE}, it is {limit!r}")
    return limit


async def pages(storage: Storage, filter: Filter) -> AsyncIterator[list[Record]]:
    """All jobs that fit, page by page, newest first."""
    cursor: str | None = None
    while True:
        records, cursor = await storage.find(filter, storage.chunk, cursor)
        if records:
            yield records
        if cursor is None:
            return


def _states(given: object) -> tuple[State, ...]:
    several: Iterable[Any] = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    try:
        return tuple(State(state) for state in several)
    except ValueError as error:
        raise InvalidCall(f"{error}; states are {', '.join(State)}") from None


def _check_text(text: object) -> str:
    if not isinstance(text, str) or not text:
        raise InvalidCall(f"text must be what to look for, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidCall(f"text={text!r} has a lone surrogate, which is no character") from None
    return text


def dict_of(filter: JobFilter) -> dict[str, Any]:
    return cast("dict[str, Any]", filter)
