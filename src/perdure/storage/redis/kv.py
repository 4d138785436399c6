"""The kv table: named texts with versions, written under guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

from perdure.storage.contract import KvEntry, KvWrite

from .connection.client import RedisClient
from .keys import escape, id_text, readable_names, require_id, unescape
from .reading.unreadable import move_values
from .rows import NONE, UNREADABLE
from .script_args import Argument, pack_hold, pack_jobs

_ROW = Struct("<ddH")  # version, due_at, length of the job's id: see lua/kv.lua
_WRITE = Struct("<BddH")  # options, version, due_at, length of the job's id
_TEXT, _HOLD, _JOBS = 1, 2, 4


async def read(
    client: RedisClient, now: Any, kind: str, names: Sequence[str] | None, job: str | None, due: bool, limit: int
) -> list[KvEntry]:
    which = "names" if names is not None else "due" if due else "all"
    arguments: list[Argument] = [now, escape(kind), which, limit, _id(job)]
    if names is not None:
        arguments += (escape(name) for name in sorted(set(names)))
    told = await client.run("kv_read", arguments, repeat=True)
    return await _keep_readable(client, [(kind, name, text) for name, text in zip(told[::2], told[1::2], strict=True)])


async def _keep_readable(client: RedisClient, told: Sequence[tuple[str, bytes, bytes]]) -> list[KvEntry]:
    """The entries that can be read; the others are set aside."""
    found: list[KvEntry] = []
    bad: list[tuple[bytes, bytes]] = []
    for kind, name, text in told:
        try:
            found.append(_entry(kind, unescape(name), text))
        except UNREADABLE:
            bad.append((escape(kind) + b"\x00" + name, text))
    if bad:
        await move_values(client, "kv", bad)
    return found


def pack_writes(listed: Sequence[KvWrite]) -> list[Argument]:
    """The arguments of kv_write.lua."""
    arguments: list[Argument] = [len(listed)]
    for write in listed:
        job = _id(write.job)
        options = (write.text is not None) * _TEXT | (write.hold is not None) * _HOLD | bool(write.jobs) * _JOBS
        version, due_at = (NONE if number is None else number for number in (write.version, write.due_at))
        arguments += (_WRITE.pack(options, version, due_at, len(job)) + job, _field(write.kind, write.name))
        if write.text is not None:
            arguments.append(write.text.encode())
        if write.hold is not None:
            arguments.append(pack_hold(write.hold))
        if write.jobs:
            arguments += pack_jobs(write.jobs)
    return arguments


async def audit(client: RedisClient, behind: bytes, limit: int) -> tuple[bytes, int]:
    """Write the index of some entries again where it is lost. Returns where the scan ended, and how many were repaired."""
    ended, put_right = await client.run("audit_kv", [behind, limit], repeat=True)
    return ended, int(put_right)


async def export(client: RedisClient, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
    told = await client.run("export_kv", [b"" if after is None else _field(*after), limit], repeat=True)
    fields = (field.partition(b"\x00") for field in told[::2])
    known = [(*readable_names([kind]), name, text) for (kind, _, name), text in zip(fields, told[1::2], strict=True)]
    return await _keep_readable(client, [each for each in known if len(each) == 3])


async def restore(client: RedisClient, rows: Iterable[KvEntry]) -> None:
    texts = {_field(row.kind, row.name): _row(row) for row in rows}
    if texts:
        await client.run("restore_kv", [part for pair in texts.items() for part in pair], repeat=True)


def _field(kind: str, name: str) -> bytes:
    return escape(kind) + b"\x00" + escape(name)


def _id(job: str | None) -> bytes:
    return b"" if job is None else require_id(job)


def _row(row: KvEntry) -> bytes:
    job = _id(row.job)
    return _ROW.pack(row.version, NONE if row.due_at is None else row.due_at, len(job)) + job + row.text.encode()


def _entry(kind: str, name: str, text: bytes) -> KvEntry:
    version, due_at, length = _ROW.unpack_from(text)
    at = _ROW.size + length
    job = id_text(text[_ROW.size : at]) if length else None
    return KvEntry(kind, name, text[at:].decode(), int(version), None if due_at == NONE else int(due_at), job)
