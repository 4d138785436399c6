"""The keys of the store, and ids and names as bytes.

All keys have one hash tag: on a cluster they live on one node, and a script may use them all. An id is stored as the 16
bytes of the UUID, which sort like its text. A name is stored without NUL, so that NUL can end it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

from perdure.core.record import NewJob, Record
from perdure.storage.rules.fairness import Account

# In the order of KEYS in lua/constants.lua, each with the type that the server must hold there.
TYPES = {
    "jobs": "hash",
    "rows": "hash",
    "lanes": "zset",
    "schedule": "zset",
    "aside": "zset",
    "leases": "zset",
    "expiring": "zset",
    "ended": "zset",
    "prunable": "zset",
    "created": "zset",
    "dead": "zset",
    "named": "zset",
    "outcomes": "hash",
    "errors": "hash",
    "progress": "hash",
    "logs": "hash",
    "held_keys": "hash",
    "kept_keys": "hash",
    "windows": "zset",
    "counts": "hash",
    "depths": "hash",
    "bounds": "hash",
    "paused": "set",
    "meta": "hash",
    "queues": "hash",
    "workers": "hash",
    "limits": "zset",
    "gates": "hash",
    "edges": "zset",
    "unresolved": "zset",
    "kv": "hash",
    "kv_index": "zset",
    "accounts": "hash",
    "heads": "zset",
    "unread": "zset",
    "unreadable": "hash",
}
STAMP = Struct("<q")
_PARTS = Struct("8s4s4s4s12s")  # of an id as hexadecimal digits


class Keys:
    """The keys under one prefix, and the channels of its signals."""

    def __init__(self, prefix: str) -> None:
        self.by_name = {name: f"{{{prefix}}}:{name}" for name in TYPES}
        self.all = tuple(self.by_name.values())
        self.ready = f"{self['meta']}:ready"
        self.changed = f"{self['meta']}:changed"

    def __getitem__(self, name: str) -> str:
        return self.by_name[name]


# ---- ids -------------------------------------------------------------------------------------------
def id_bytes(id: str) -> bytes | None:
    """The bytes of an id; None if the text is no id."""
    try:
        found = bytes.fromhex(id.replace("-", ""))
    except ValueError:
        return None
    return found if len(found) == 16 else None


def id_text(id: bytes) -> str:
    text = id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def require_id(id: str) -> bytes:
    found = id_bytes(id)
    if found is None:
        raise ValueError(f"{id!r} is not a job id (a UUID)")
    return found


def id_texts(ids: bytes) -> list[str]:
    """Split ids that are joined to one text."""
    return [b"-".join(parts).decode() for parts in _PARTS.iter_unpack(ids.hex().encode())]


def stamp_bytes(stamp: int) -> bytes:
    return STAMP.pack(stamp)


# ---- names -----------------------------------------------------------------------------------------
def escape(text: str) -> bytes:
    """Write a text without NUL, so that NUL can end it."""
    raw = text.encode()
    return raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") if b"\x00" in raw or b"\x01" in raw else raw


def unescape(raw: bytes) -> str:
    if b"\x01" in raw:
        raw = raw.replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01")
    return raw.decode()


def readable_names(raws: Iterable[bytes]) -> list[str]:
    """Names in an answer, without those that are not UTF-8."""
    names = []
    for raw in raws:
        try:
            names.append(unescape(raw))
        except UnicodeDecodeError:
            continue
    return names


def account_bytes(account: Account) -> bytes:
    """A tenant's account in a queue and priority, as in lua/fair_ranks.lua."""
    return b"\x00".join((escape(account.queue), str(account.priority).encode(), (account.tenant or "").encode()))


def routing_text(routing: str | None) -> bytes:
    return b"-" if routing is None else b"=" + escape(routing)


@lru_cache(maxsize=4096)
def lane_of(queue: str, task: str, routing: str | None) -> bytes:
    return b"\x00".join((escape(queue), escape(task), routing_text(routing)))


@lru_cache(maxsize=4096)
def parts_of(lane: bytes) -> tuple[str, str, str | None]:
    """Queue, task and routing key of a lane."""
    queue, task, routing = lane.split(b"\x00")
    return unescape(queue), unescape(task), None if routing == b"-" else unescape(routing[1:])


def names_of(job: NewJob | Record) -> bytes:
    """The names under which a job is indexed: its key and its chain."""
    names = b""
    if job.key is not None:
        names += b"k" + escape(job.key) + b"\x00"
    if job.chain_id is not None:
        names += b"c" + escape(job.chain_id) + b"\x00"
    return names
