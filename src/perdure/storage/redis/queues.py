"""The small tables beside the jobs: queues, workers, log lines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from struct import Struct
from typing import Any

import msgspec

from perdure.storage.contract import QueueRow, QueueSettings, Room, WorkerRow
from perdure.storage.fairness import share

from .link import Link
from .names import escaped, plain

_SEEN = Struct("<d")
_LENGTH = Struct("<I")
_settings = msgspec.msgpack.Decoder(QueueSettings)
_worker = msgspec.msgpack.Decoder(tuple[int, int, str])


async def queues(link: Link, now: Any) -> list[QueueRow]:
    configured, paused, depths, oldest = await link.run("queues", [now], repeat=True)
    settings = {plain(name): _settings_of(plain(name), text) for name, text in _pairs(configured)}
    settings |= {
        name: msgspec.structs.replace(found, paused=True)
        for raw in paused
        if (found := settings.get(name := plain(raw), QueueSettings(name)))
    }
    depth = {plain(name): int(number) for name, number in _pairs(depths)}
    due = {plain(name): int(since) for name, since in _pairs(oldest)}
    return [
        QueueRow(settings.get(name) or QueueSettings(name), depth.get(name, 0), due.get(name))
        for name in sorted(settings.keys() | depth.keys())
    ]


async def rooms(link: Link) -> dict[str, Room]:
    """How many more jobs each bounded queue takes."""
    told = {name: bound.split(b" ") for name, bound in _pairs(await link.command("HGETALL", link.keys["bounds"]))}
    bounds = {name: bound for name, bound in told.items() if bound[0] != b"-"}
    depths = await link.command("HMGET", link.keys["depths"], *bounds) if bounds else []
    return {
        plain(name): _room(plain(name), bound, int(depth or 0))
        for (name, bound), depth in zip(bounds.items(), depths, strict=True)
    }


def _room(name: str, bound: list[bytes], depth: int) -> Room:
    """See `_bound`."""
    most, on_full, drop_below = int(bound[0]), bound[1].decode(), bound[2]
    settings = QueueSettings(name, False, most, on_full, None if drop_below == b"-" else int(drop_below))  # type: ignore[arg-type]
    return Room(settings, most - depth)


async def configure(link: Link, origin: bytes, settings: QueueSettings) -> None:
    text = msgspec.msgpack.encode(msgspec.structs.replace(settings, paused=False))
    await link.run("configure", [origin, escaped(settings.name), "settings", text, _bound(settings)], repeat=True)


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
    shares = {tenant: share(settings.weights, tenant) for tenant in msgspec.json.decode(settings.weights or "{}")}
    return bound + b" " + msgspec.msgpack.encode(shares)


async def pause(link: Link, origin: bytes, queue: str, paused: bool) -> None:
    await link.run("configure", [origin, escaped(queue), "pause" if paused else "resume"], repeat=True)


async def workers(link: Link, now: Any, seen_within: int) -> list[WorkerRow]:
    listed = await link.run("workers", [now, "list", seen_within], repeat=True)
    rows = [_worker_of(name.decode(), text) for name, text in _pairs(listed)]
    return sorted(rows, key=lambda row: row.id)


async def log(link: Link, id: bytes | None) -> list[str]:
    text = None if id is None else await link.command("HGET", link.keys["logs"], id)
    return [] if text is None else lines_of(text)


def lines_of(text: bytes) -> list[str]:
    """Log lines as they are kept: each behind its length."""
    lines, at = [], 0
    while at < len(text):
        (length,) = _LENGTH.unpack_from(text, at)
        lines.append(text[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return lines


def lines_text(lines: Iterable[str]) -> bytes:
    return b"".join(_LENGTH.pack(len(line)) + line for line in (line.encode() for line in lines))


def _settings_of(name: str, text: bytes) -> QueueSettings:
    return _settings.decode(text) if text else QueueSettings(name)


def _worker_of(id: str, text: bytes) -> WorkerRow:
    started_at, running, about = _worker.decode(text[_SEEN.size :])
    (seen_at,) = _SEEN.unpack_from(text)
    return WorkerRow(id, started_at, int(seen_at), running, about)


def _pairs(flat: list[Any]) -> chain[tuple[Any, Any]]:
    return chain(zip(flat[::2], flat[1::2], strict=True))
