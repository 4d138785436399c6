"""Reads and writes settings of queues, workers and log lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct, error
from typing import Any

import msgspec

from perdure.storage.contract import QueueCapacity, QueueRow, QueueSettings, WorkerRow
from perdure.storage.rules.fairness import share

from ..connection.client import RedisClient
from ..keys import escape, readable_names

_SEEN = Struct("<d")
_LENGTH = Struct("<I")
_settings = msgspec.msgpack.Decoder(QueueSettings)
_worker = msgspec.msgpack.Decoder(tuple[int, int, str])


async def queues(client: RedisClient, now: Any) -> list[QueueRow]:
    configured, paused, depths, oldest = await client.run("queues", [now], repeat=True)
    settings = {name: _settings_of(name, text) for name, text in _named(configured)}
    settings |= {
        name: msgspec.structs.replace(settings.get(name, QueueSettings(name)), paused=True)
        for name in readable_names(paused)
    }
    depth = {name: number for name, text in _named(depths) if (number := _number(text)) is not None}
    due = {name: int(since) for name, since in _named(oldest)}
    return [
        QueueRow(settings.get(name) or QueueSettings(name), depth.get(name, 0), due.get(name))
        for name in sorted(settings.keys() | depth.keys())
    ]


async def capacities(client: RedisClient) -> dict[str, QueueCapacity]:
    """How many more jobs each bounded queue takes."""
    told = await client.command("HGETALL", client.keys["bounds"])
    bounds = {name: settings for name, text in _named(told) if (settings := _parse_bound(name, text)) is not None}
    depths = await client.command("HMGET", client.keys["depths"], *map(escape, bounds)) if bounds else []
    return {
        name: QueueCapacity(settings, (settings.max_depth or 0) - (_number(depth or b"0") or 0))
        for (name, settings), depth in zip(bounds.items(), depths, strict=True)
    }


def _parse_bound(name: str, text: bytes) -> QueueSettings | None:
    """See `_bound`; None for a queue without a bound, or one of which nothing can be read."""
    most, _, rest = text.partition(b" ")
    on_full, _, drop_below = rest.partition(b" ")
    if (bound := _number(most)) is None or on_full not in (b"reject", b"drop", b"wait"):
        return None
    return QueueSettings(name, False, bound, on_full.decode(), _number(drop_below.split(b" ")[0]))  # type: ignore[arg-type]


def _number(text: bytes) -> int | None:
    return int(text) if text.removeprefix(b"-").isdigit() and len(text) < 20 else None


async def configure(client: RedisClient, origin: bytes, settings: QueueSettings) -> None:
    text = msgspec.msgpack.encode(msgspec.structs.replace(settings, paused=False))
    await client.run("configure", [origin, escape(settings.name), "settings", text, _bound(settings)], repeat=True)


def _bound(settings: QueueSettings) -> bytes:
    """What an enqueue must know of a queue: max_depth, policy, drop_below and, if it is fair, what a job of each tenant with
    a weight costs. Nothing, if there is nothing to know."""
    if settings.max_depth is None and not settings.fair:
        return b""
    most = "-" if settings.max_depth is None else settings.max_depth
    drop_below = "-" if settings.drop_below is None else settings.drop_below
    bound = f"{most} {settings.on_full} {drop_below}".encode()
    if not settings.fair:
        return bound
    shares = {tenant: share(settings.weights, tenant) for tenant in _tenants(settings.weights)}
    return bound + b" " + msgspec.msgpack.encode(shares)


def _tenants(weights: str | None) -> list[str]:
    """The tenants with a weight; none, if the weights cannot be read."""
    try:
        return list(msgspec.json.decode(weights or "{}", type=dict[str, Any]))
    except (msgspec.MsgspecError, ValueError):
        return []


async def pause(client: RedisClient, origin: bytes, queue: str, paused: bool) -> None:
    await client.run("configure", [origin, escape(queue), "pause" if paused else "resume"], repeat=True)


async def workers(client: RedisClient, now: Any, seen_within: int) -> list[WorkerRow]:
    listed = await client.run("workers", [now, "list", seen_within], repeat=True)
    found = (_worker_of(name, text) for name, text in _pairs(listed))
    return sorted((row for row in found if row is not None), key=lambda row: row.id)


async def log(client: RedisClient, id: bytes | None) -> list[str]:
    text = None if id is None else await client.command("HGET", client.keys["logs"], id)
    return [] if text is None else lines_of(text)


def lines_of(text: bytes) -> list[str]:
    """Log lines as they are kept: each behind its length."""
    lines, at = [], 0
    while at < len(text):
        try:
            (length,) = _LENGTH.unpack_from(text, at)
            lines.append(text[at + 4 : at + 4 + length].decode())
        except (error, UnicodeDecodeError):
            lines.append(f"unreadable: the rest of the log, {len(text) - at} bytes")
            break
        at += 4 + length
    return lines


def lines_text(lines: Iterable[str]) -> bytes:
    return b"".join(_LENGTH.pack(len(line)) + line for line in (line.encode() for line in lines))


def _settings_of(name: str, text: bytes) -> QueueSettings:
    """The settings of a queue; those that every queue has, where they cannot be read."""
    try:
        return msgspec.structs.replace(_settings.decode(text), name=name) if text else QueueSettings(name)
    except (msgspec.MsgspecError, ValueError):
        return QueueSettings(name)


def _worker_of(id: bytes, text: bytes) -> WorkerRow | None:
    """A worker; None if its entry cannot be read. A living worker writes it again."""
    try:
        started_at, running, about = _worker.decode(text[_SEEN.size :])
        (seen_at,) = _SEEN.unpack_from(text)
        return WorkerRow(id.decode(), started_at, int(seen_at), running, about)
    except (msgspec.MsgspecError, ValueError, OverflowError, error):
        return None


def _named(flat: list[Any]) -> Iterator[tuple[str, Any]]:
    """Names and what belongs to them, without names that are no text."""
    for raw, value in _pairs(flat):
        for name in readable_names([raw]):
            yield name, value


def _pairs(flat: list[Any]) -> chain[tuple[Any, Any]]:
    return chain(zip(flat[::2], flat[1::2], strict=True))
