"""The fuzzer's hand on a Redis or Valkey server: every field of every key of ours."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import Struct, pack
from typing import Any

import msgspec
import redis

from perdure.core.record import NewJob
from perdure.storage.contract import Storage, Unreadable
from perdure.storage.redis.keys import TYPES, Keys
from perdure.storage.urls import parse

from .target import Missing, Mutation, Refused, Target
from .values import BYTES, TEXTS

NONE = -9007199254740992.0  # "no number" in a row
DOUBLES = {
    "NaN": float("nan"),
    "infinite": float("inf"),
    "minus infinite": float("-inf"),
    "fraction": 1.5,
    "huge": 1e300,
    "negative": -1.0,
    "53 bits": 2.0**53,
    "nothing": NONE,
    "zero": 0.0,
}
COUNTERS = {"zero": 0, "largest": 2**32 - 1, "half": 2**31}
FLAT = {name: value.encode() for name, value in TEXTS.items() if isinstance(value, str)} | BYTES
SHORT = {name: value for name, value in FLAT.items() if len(value) < 100}
NUMBERS = {
    "empty": b"",
    "a word": b"nonsense",
    "NaN": b"nan",
    "infinite": b"inf",
    "largest": b"9223372036854775807",
    "smallest": b"-9223372036854775808",
    "fraction": b"1.5",
    "negative": b"-7",
    "beyond 64 bits": b"99999999999999999999",
}
SCORES = {"infinite": float("inf"), "minus infinite": float("-inf"), "zero": 0.0, "huge": 1e300, "negative": -5.0}
VALUES: dict[str, dict[str, Any]] = {
    "state": {"zero": 0, "nine": 9, "largest": 255, "running": 4, "blocked": 1, "dead": 7},
    "marks": {"none": 0, "all": 0xFFFF, "ran": 256, "held": 512, "parked": 2, "limited": 4096, "some": 0x5555},
    **dict.fromkeys(("version", "attempt", "failures", "losses", "waits"), COUNTERS),
    "stamp": {"none": bytes(8), "other": b"\xff" * 8},
    "accepted_stamp": {"other": b"\xff" * 8},
    **dict.fromkeys(("leased_until", "started_at", "finished_at", "prune_at", "keep_last", "lease"), DOUBLES),
    **dict.fromkeys(("created_at", "run_at", "rank", "expires_at"), DOUBLES),
    "leased_by": {"empty": b"", "invalid UTF-8": b"\xff\xfe", "long": b"x" * 5000},
    "scope": {"unknown": 5, "largest": 255, "waiting": 1, "window": 4},
    "lane": {
        "empty": b"",
        "invalid UTF-8": b"\xff\x00\xfe\x00-",
        "one name": b"a",
        "two names": b"a\x00b",
        "four names": b"a\x00b\x00c\x00d",
        "no routing": b"a\x00b\x00?",
        "bad routing": b"q\x00t\x00=\xff",
    },
    "priority": {"largest": 2**31 - 1, "smallest": -(2**31)},
    "min_version": {"zero": 0, "largest": 255},
    "unique": {"invalid UTF-8": b"\xff\xfe", "other": b"other"},
    "names": {"invalid UTF-8": b"k\xff\x00", "empty": b"c\x00", "no id": b"cnot an id\x00", "no end": b"k"},
    "more": {
        "one byte": b"\x00",
        "cut": b"\x05\x00abc",
        "noise": b"\xff" * 30,
        "no limit": pack("<H", 16) + b"g" * 16 + bytes(19),
        "no next id": pack("<H", 20) + b"g" * 20 + b"\x03\x00abc" + bytes(17),
    },
}
PREFIXES = {
    "lanes": (b"r", b"s", b"r\x01work\x00", b"r\x01work\x00work\x00-\x00", b"p\x01"),
    "heads": (b"r", b"s", b"r\x01work\x00", b"r\x01work\x00-\x00", b"r\x01canary\x00-\x00"),
    "limits": (
        b"n",
        b"o",
        b"p",
        b"q",
        b"b",
        b"t",
        b"or\x01work\x00",
        b"qr\x01work\x00-\x00",
        b"pxxxxxxxxxxxxxxxxr\x01work\x00",
    ),
    "edges": (b"o", b"c", b"k"),
    "aside": (b"1", b"3", b"3work\x00"),
    "ended": (b"work\x00o\x00-\x00", b"work\x00d\x003\x00", b"work\x00o\x00x\x00"),
    "named": (b"k", b"c"),
    "kv_index": (b"n", b"d", b"j", b"dfuzz\x00", b"nfuzz\x00"),
}
MARKS = {"outcomes": 16, "errors": 32, "progress": 64, "logs": 128}
BODY = [
    "payload",
    "max_attempts",
    "timeout",
    "backoff",
    "retention",
    "dead_retention",
    "tenant",
    "tags",
    "meta",
    "after",
    "run_when",
    "limits",
]
ODD = {
    "null": None,
    "seven": 7,
    "negative": -1,
    "64 bits": 2**63,
    "fraction": 1.5,
    "true": True,
    "list": [],
    "bytes": b"\xff",
}
_HEAD, _RUN, _FIRST, _REST = Struct("<BHI"), Struct("<III8s8sdddddH"), Struct("<dBH"), Struct("<iIBdddd")
_RUN_FIELDS = [
    "attempt",
    "failures",
    "losses",
    "stamp",
    "accepted_stamp",
    "leased_until",
    "started_at",
    "finished_at",
    "prune_at",
    "keep_last",
]
_REST_FIELDS = ["priority", "waits", "min_version", "created_at", "run_at", "rank", "expires_at"]


class RedisTarget(Target):
    short_lived = frozenset(("unresolved", "unread", "limits", "gates"))

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self._raw: redis.Redis = redis.Redis.from_url(url.partition("?")[0])
        self._keys = Keys(parse(url).server.prefix)
        self._chance = random.Random(seed)

    def close(self) -> None:
        self._raw.close()

    def rows(self) -> dict[str, int]:
        """Every key that is declared, and every other one under our prefix."""
        prefix = self._keys["jobs"].removesuffix("jobs")
        there = [key.decode().removeprefix(prefix) for key in self._raw.scan_iter(match=f"{prefix}*", count=1000)]
        return {name: self._length(f"{prefix}{name}") for name in sorted({*TYPES, *there})}

    def _length(self, key: str) -> int:
        kind = self._raw.type(key).decode()
        length = {"hash": self._raw.hlen, "zset": self._raw.zcard, "set": self._raw.scard}.get(kind)
        return 0 if kind == "none" else 1 if length is None else int(length(key))

    async def seed(self, store: Storage, followers: Sequence[NewJob], parents: Sequence[str]) -> None:
        """Edges stay unresolved where a parent has very many; a job stays unread until the next look."""
        await store.enqueue(followers)
        ids = [bytes.fromhex(id.replace("-", "")) for id in parents]
        self._raw.zadd(self._keys["unresolved"], dict.fromkeys(ids, 0))
        self._raw.zadd(self._keys["unread"], dict.fromkeys(ids, 0))
        row = Unreadable("a row", 1, "seed", (), "{}")
        self._raw.hset(self._keys["unreadable"], b"jseed", msgspec.json.encode(row))

    def mutations(self) -> list[Mutation]:
        return [*self._of_rows(), *self._of_bodies(), *self._of_indexes(), *self._shared()]

    # -- what belongs to a job -----------------------------------------------------------------------
    def _of_rows(self) -> Iterator[Mutation]:
        for field, bads in VALUES.items():
            for name, bad in bads.items():
                yield self._row(field, name, partial(_with_part, field=field, bad=bad))
        for share in (0.0, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
            yield self._row("row", f"cut at {share}", partial(_cut, share=share))
        for name, bad in FLAT.items():
            yield self._row("row", name, lambda row, bad=bad: bad)
        yield self._row("row", "a byte more", lambda row: row + b"\x00")
        yield self._row("row", "noise behind", lambda row: row + b"\x7f" * 60)
        for name in ("rows", "jobs"):
            yield self._by_job(f"{name}.field", "gone", partial(self._remove, name))

    def _of_bodies(self) -> Iterator[Mutation]:
        for share in (0.0, 0.02, 0.1, 0.5, 0.9, 0.99):
            yield self._body("body", f"cut at {share}", partial(_cut, share=share))
        for name, bad in FLAT.items():
            yield self._body("body", name, lambda body, bad=bad: bad)
        for at, field in enumerate(BODY):
            for name, bad in (ODD | {each: text for each, text in TEXTS.items() if len(str(text)) < 100}).items():
                yield self._body(field, name, partial(_with_field, at=at, bad=bad))
            yield self._body(field, "invalid UTF-8", partial(_with_bytes, at=at))
        for name in MARKS:
            for value, bad in FLAT.items():
                yield self._by_job(f"{name}.text", value, partial(self._write_text, name, bad))

    def _of_indexes(self) -> Iterator[Mutation]:
        for name in ("leases", "schedule", "expiring", "prunable", "created", "dead"):
            for value, score in SCORES.items():
                yield self._by_job(f"{name}.score", value, partial(self._score, name, score))
            yield self._by_job(f"{name}.member", "gone", partial(self._forget, name))
        for name in ("lanes", "heads", "aside", "limits", "ended", "named", "edges"):
            for value in ("cut", "longer", "other", "NUL inside", "gone", "another score"):
                yield self._by_job(f"{name}.member", value, partial(self._spoil_members, name, value))

    # -- what belongs to no job alone ----------------------------------------------------------------
    def _shared(self) -> Iterator[Mutation]:
        for name in ("counts", "depths", "gates", "accounts", "meta"):
            for value, bad in NUMBERS.items():
                yield Mutation(f"{name}.number", value, partial(self._set_any, name, bad), of_job=False)
        for name in ("bounds", "queues", "workers", "kv", "kept_keys", "held_keys"):
            for value, bad in FLAT.items():
                yield Mutation(f"{name}.value", value, partial(self._set_any, name, bad), of_job=False)
        for name, kind in TYPES.items():
            for value, bad in SHORT.items():
                yield Mutation(f"{name}.foreign", value, partial(self._add, name, kind, bad), of_job=False)
            if name not in ("jobs", "rows", "meta", "kv"):  # with these all jobs, or all texts, would be gone
                yield Mutation(f"{name}.type", "a text", partial(self._overwrite, name), of_job=False)

    def _set_any(self, name: str, bad: bytes, job: str) -> str | None:
        with _refused():
            fields = [field for field in self._raw.hkeys(self._keys[name]) if field != b"format"]
            if not fields:
                raise Missing
            field = self._chance.choice(fields)
            self._raw.hset(self._keys[name], field, bad)
            if name == "kv":  # kind NUL name, which begins with the job that it belongs to, if there is one
                return str(field.partition(b"\x00")[2].partition(b"/")[0], "utf-8", "replace") or None
        return None

    def _add(self, name: str, kind: str, bad: bytes, job: str) -> None:
        prefix = self._chance.choice((b"", *PREFIXES.get(name, ())))
        with _refused():
            if kind == "hash":
                self._raw.hset(self._keys[name], prefix + bad, bad)
            elif kind == "set":
                self._raw.sadd(self._keys[name], bad)
            else:
                self._raw.zadd(self._keys[name], {prefix + bad: self._chance.choice([0, 1, -1, float("inf")])})

    def _overwrite(self, name: str, job: str) -> None:
        self._raw.delete(self._keys[name])
        self._raw.set(self._keys[name], b"foreign")

    # -- below ---------------------------------------------------------------------------------------
    def _row(self, field: str, value: str, spoil: Callable[[bytes], bytes]) -> Mutation:
        return self._by_job(f"rows.{field}", value, partial(self._change, "rows", spoil))

    def _body(self, field: str, value: str, spoil: Callable[[bytes], bytes]) -> Mutation:
        return self._by_job(f"jobs.{field}", value, partial(self._change, "jobs", spoil))

    def _by_job(self, where: str, value: str, write: Callable[[bytes], None]) -> Mutation:
        def of_job(job: str) -> str:
            with _refused():
                write(bytes.fromhex(job.replace("-", "")))
            return job

        return Mutation(where, value, of_job)

    def _change(self, name: str, spoil: Callable[[bytes], bytes], id: bytes) -> None:
        text = self._raw.hget(self._keys[name], id)
        if text is None:
            raise Missing
        self._raw.hset(self._keys[name], id, spoil(text))

    def _remove(self, name: str, id: bytes) -> None:
        self._raw.hdel(self._keys[name], id)

    def _forget(self, name: str, id: bytes) -> None:
        self._raw.zrem(self._keys[name], id)

    def _score(self, name: str, score: float, id: bytes) -> None:
        self._raw.zadd(self._keys[name], {id: score})

    def _write_text(self, name: str, bad: bytes, id: bytes) -> None:
        row = self._raw.hget(self._keys["rows"], id) or b""
        marks = int.from_bytes(row[1:3], "little") | MARKS[name]
        self._raw.hset(self._keys["rows"], id, row[:1] + marks.to_bytes(2, "little") + row[3:])
        self._raw.hset(self._keys[name], id, bad)

    def _spoil_members(self, name: str, how: str, id: bytes) -> None:
        found = [member for member in self._raw.zrange(self._keys[name], 0, -1) if id in member]
        if not found:
            raise Missing
        for member in found:
            cut = self._chance.randrange(len(member))
            changed = {
                "cut": member[:cut],
                "longer": member + b"\xff",
                "other": bytes([member[0] ^ 1]) + member[1:],
                "NUL inside": member[:cut] + b"\x00" + member[cut:],
                "another score": member,
            }
            self._raw.zrem(self._keys[name], member)
            if how != "gone":
                self._raw.zadd(self._keys[name], {changed[how]: 7.0 if how == "another score" else 0.0})


class _refused:
    """A key that holds another type for the moment takes no value."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, redis.ResponseError) and "WRONGTYPE" in str(error):
            raise Refused(str(error)) from error


def _cut(text: bytes, share: float) -> bytes:
    return text[: int(share * len(text))]


def _with_field(body: bytes, at: int, bad: object) -> bytes:
    fields = msgspec.msgpack.decode(body)
    return msgspec.msgpack.encode([*fields[:at], bad, *fields[at + 1 :]])


def _with_bytes(body: bytes, at: int) -> bytes:
    return _with_field(body, at, "@@@@").replace(b"@@@@", b"\xff\xfe@@")


def _with_part(row: bytes, field: str, bad: Any) -> bytes:
    parts = _parts(row)
    if field not in parts:
        raise Missing
    return _joined({**parts, field: bad})


def _parts(row: bytes) -> dict[str, Any]:
    state, marks, version = _HEAD.unpack_from(row)
    parts: dict[str, Any] = {"state": state, "marks": marks, "version": version}
    at = _HEAD.size
    if marks & 256:
        *run, length = _RUN.unpack_from(row, at)
        parts |= zip(_RUN_FIELDS, run, strict=True)
        at += _RUN.size + length
        parts["leased_by"] = row[at - length : at]
    parts["lease"], parts["scope"], length = _FIRST.unpack_from(row, at)
    at += _FIRST.size + length
    parts["lane"] = row[at - length : at]
    parts |= zip(_REST_FIELDS, _REST.unpack_from(row, at), strict=True)
    at += _REST.size
    for name in ("unique", "names"):
        length = int.from_bytes(row[at : at + 2], "little")
        at += 2 + length
        parts[name] = row[at - length : at]
    parts["more"] = row[at:]
    return parts


def _joined(parts: dict[str, Any]) -> bytes:
    text = _HEAD.pack(parts["state"], parts["marks"], parts["version"])
    if "attempt" in parts:
        text += _RUN.pack(*(parts[name] for name in _RUN_FIELDS), len(parts["leased_by"])) + parts["leased_by"]
    text += _FIRST.pack(parts["lease"], parts["scope"], len(parts["lane"])) + parts["lane"]
    text += _REST.pack(*(parts[name] for name in _REST_FIELDS))
    for name in ("unique", "names"):
        text += pack("<H", len(parts[name])) + parts[name]
    return bytes(text + parts["more"])
