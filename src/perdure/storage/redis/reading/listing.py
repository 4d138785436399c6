"""Reads jobs by id and by filter, and counts them.

A listing walks along created_at, in pieces that the server looks through in a moment, and filters the rest here. Where a
shorter way is known it is taken: dead letters have an index, keys and chains have one, jobs that run are looked
up by their leases and, while they are few, jobs that wait by their places. Counts by state, queue, task and routing key are
kept by the scripts, and the jobs of a key or chain are counted by one; any other count is a walk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from struct import Struct

from perdure.core.job import ANY, State
from perdure.core.record import Record
from perdure.storage.contract import Filter
from perdure.storage.rules.filters import Position, cursor_of, fits

from ..connection.client import RedisClient
from ..keys import escape, id_bytes, id_text, parts_of
from ..rows import STATES
from .records import records_of
from .unreadable import instant_now, readable_or_marked

FEW = 5_000  # waiting jobs that are looked up one by one sooner than a history is walked through
BUDGET = 2_000  # rows that the server looks at in one go
CHUNK = 500
_OFFSET = 1 << 51  # see `ordered` in lua/indexes.lua
_ORDERED = Struct(">Q")
_PLACES = {
    State.RUNNING: ("leases",),
    State.SCHEDULED: ("schedule",),
    State.BLOCKED: ("aside",),
    State.READY: ("lanes", "aside"),
}
_COUNTED = ("tenant", "key", "tag", "chain_id", "text", "since", "before")  # what a kept count cannot tell


async def get(client: RedisClient, ids: Sequence[str]) -> list[Record | None]:
    found: dict[str, Record] = {}
    known = {id: raw for id in ids if (raw := id_bytes(id)) is not None}
    wanted = list(known.values())
    for begin in range(0, len(wanted), CHUNK):
        part = await client.run("get", wanted[begin : begin + CHUNK], repeat=True)
        found |= {record.id: record for record in readable_or_marked(records_of(part), instant_now())}
    return [found.get(id_text(known[id])) if id in known else None for id in ids]


async def find(
    client: RedisClient, filter: Filter, limit: int, after: Position | None
) -> tuple[list[Record], str | None]:
    page: list[Record] = []
    if limit > 0:
        async for record in _fitting(client, filter, limit, after):
            page.append(record)
            if len(page) > limit:
                return page[:limit], cursor_of(page[limit - 1])
    return page, None


async def count(client: RedisClient, filter: Filter) -> int:
    if all(getattr(filter, name) is None for name in _COUNTED):
        return await _kept_count(client, filter)
    if filter == Filter(states=filter.states, key=filter.key) and filter.key is not None:
        return await _count_under_a_name(client, b"k" + escape(filter.key), filter, b"")
    if filter == Filter(states=filter.states, chain_id=filter.chain_id) and filter.chain_id is not None:
        return await _count_of_a_chain(client, filter, filter.chain_id)
    found = 0
    async for _ in _fitting(client, filter, BUDGET, None):
        found += 1
    return found


async def _kept_count(client: RedisClient, filter: Filter) -> int:
    counts = await client.command("HGETALL", client.keys["counts"])
    found = 0
    for field, number in zip(counts[::2], counts[1::2], strict=True):
        try:
            lane, _, state = field.rpartition(b"\x00")
            queue, task, routing = parts_of(lane)
            counted, found_state = int(number), STATES[int(state) - 1]
        except (ValueError, IndexError):
            continue  # somebody else's
        if (
            (filter.states is None or found_state in filter.states)
            and (filter.queue is None or queue == filter.queue)
            and (filter.task is None or task == filter.task)
            and (filter.routing is ANY or routing == filter.routing)
        ):
            found += counted
    return found


async def _count_of_a_chain(client: RedisClient, filter: Filter, chain_id: str) -> int:
    """Count the jobs of a chain. Its first job may lack the chain id, so it is read by its own id."""
    (first,) = await get(client, [chain_id])
    others = await _count_under_a_name(client, b"c" + escape(chain_id), filter, id_bytes(chain_id) or b"")
    return others + (first is not None and fits(first, filter))


async def _count_under_a_name(client: RedisClient, name: bytes, filter: Filter, other: bytes) -> int:
    """The jobs of a key or chain but for one, counted by the server."""
    found, last = 0, b""
    while True:
        piece = await client.run("count_named", [name + b"\x00", last, other, BUDGET, _states(filter)], repeat=True)
        found, last = found + int(piece[0]), piece[1]
        if not last:
            return found


# ---- which way to walk -----------------------------------------------------------------------------
async def _fitting(client: RedisClient, filter: Filter, limit: int, after: Position | None) -> AsyncIterator[Record]:
    """The jobs that fit, newest first, below a position."""
    if filter.states is not None and not filter.states:
        return
    places = await _places(client, filter)
    if filter.key is not None:
        walk = _under_a_name(client, b"k" + escape(filter.key), None, after)
    elif filter.chain_id is not None:
        walk = _under_a_name(client, b"c" + escape(filter.chain_id), filter.chain_id, after)
    elif places is not None:
        walk = _in_places(client, places, after)
    else:
        walk = _along_created_at(client, filter, limit, after)
    async for record in walk:
        if fits(record, filter):
            yield record


async def _places(client: RedisClient, filter: Filter) -> set[str] | None:
    """The indexes that hold all jobs of these states, if they are short."""
    places: set[str] = set()
    for state in filter.states if filter.states is not None else STATES:
        if state not in _PLACES:
            return None
        places.update(_PLACES[state])
    if places != {"leases"}:
        sizes = [await client.command("ZCARD", client.keys[place]) for place in sorted(places)]
        if sum(sizes) > FEW:
            return None
    return places


async def _in_places(client: RedisClient, places: Iterable[str], after: Position | None) -> AsyncIterator[Record]:
    ids: set[str] = set()
    for place in places:
        members = await client.command("ZRANGE", client.keys[place], 0, -1)
        ids.update(id_text(id) for member in members if len(id := _id_in(place, member)) == 16)
    records = [record for record in await get(client, sorted(ids)) if record is not None]
    records.sort(key=lambda record: (record.created_at, record.id), reverse=True)
    for record in records:
        if after is None or (record.created_at, record.id) < after:
            yield record


def _id_in(place: str, member: bytes) -> bytes:
    """The id in a member of an index; see lua/indexes.lua for their forms."""
    if place == "lanes":
        begin = -1
        for _ in range(3):
            begin = member.find(b"\x00", begin + 1)
            if begin < 0:
                return b""  # nobody's
        return member[begin + 13 : begin + 29]
    return member[-16:]


async def _under_a_name(
    client: RedisClient, name: bytes, own: str | None, after: Position | None
) -> AsyncIterator[Record]:
    """Jobs of a key or chain, newest first; a chain's first job is found by its own id."""
    prefix = name + b"\x00"
    first = None if own is None else (await get(client, [own]))[0]
    if first is not None and after is not None and (first.created_at, first.id) >= after:
        first = None
    top = b"(" + prefix[:-1] + b"\x01"
    if after is not None:
        top = b"(" + prefix + _ORDERED.pack(max(0, after[0] + _OFFSET)) + (id_bytes(after[1]) or b"")
    while True:
        bounds = (top, b"[" + prefix, "LIMIT", 0, CHUNK)
        members = await client.command("ZREVRANGEBYLEX", client.keys["named"], *bounds)
        for record in await get(client, [id_text(member[-16:]) for member in members]):
            if record is None or (first is not None and record.id == first.id):
                continue
            if first is not None and (record.created_at, record.id) < (first.created_at, first.id):
                yield first
                first = None
            yield record
        if len(members) < CHUNK:
            break
        top = b"(" + members[-1]
    if first is not None:
        yield first


async def _along_created_at(
    client: RedisClient, filter: Filter, limit: int, after: Position | None
) -> AsyncIterator[Record]:
    top: tuple[str, bytes] = ("+inf", b"") if filter.before is None else (str(filter.before), b"")
    if after is not None and (filter.before is None or after[0] < filter.before):
        top = (str(after[0]), id_bytes(after[1]) or b"")
    floor = "-inf" if filter.since is None else str(filter.since)
    index = "dead" if filter.states is not None and set(filter.states) == {State.DEAD} else "created"
    names = (escape(filter.queue or ""), escape(filter.task or ""))
    most = min(max(limit + 1, 1), CHUNK)
    while True:
        more, score, id, told, strange = await client.run(
            "page", [index, *top, _number(floor), BUDGET, most, _states(filter), *names], repeat=True
        )
        births = dict(zip(strange[::2], strange[1::2], strict=True))
        for record in readable_or_marked(records_of(told), instant_now(), births):
            yield record
        if more == b"end":
            return
        top = (score.decode(), id)


def _states(filter: Filter) -> str:
    """A digit for each state: whether it is asked for."""
    return "".join("1" if filter.states is None or state in filter.states else "0" for state in STATES)


def _number(text: str) -> str:
    return "-1e300" if text == "-inf" else text
