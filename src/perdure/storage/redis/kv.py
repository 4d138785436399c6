"""The kv table: named texts with versions, written under guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

from perdure.storage.contract import KvEntry, KvWrite

from .client import RedisClient
from .keys import checked_id, escaped, id_text, known_names, plain
from .records import NONE, UNREADABLE
from .script_args import Argument, hold_bytes, new_jobs
from .unreadable import move_values

_ROW = Struct("<ddH")  # version, due_at, length of the job's id: see lua/kv.lua
_WRITE = Struct("<BddH")  # options, version, due_at, length of the job's id
_TEXT, _HOLD, _JOBS = 1, 2, 4


async def look(
    link: RedisClient, now: Any, kind: str, names: Sequence[str] | None, job: str | None, due: bool, limit: int
) -> list[KvEntry]:
    which = "names" if names is not None else "due" if due else "all"
    arguments: list[Argument] = [now, escaped(kind), which, limit, _id(job)]
    if names is not None:
        arguments += (escaped(name) for name in sorted(set(names)))
    told = await link.run("kv_read", arguments, repeat=True)
    return await _readable(link, [(kind, name, text) for name, text in zip(told[::2], told[1::2], strict=True)])


async def _readable(link: RedisClient, told: Sequence[tuple[str, bytes, bytes]]) -> list[KvEntry]:
    """The entries that can be read; the others are set aside."""
    found: list[KvEntry] = []
    bad: list[tuple[bytes, bytes]] = []
    for kind, name, text in told:
        try:
            found.append(_entry(kind, plain(name), text))
        except UNREADABLE:
            bad.append((escaped(kind) + b"\x00" + name, text))
    if bad:
        await move_values(link, "kv", bad)
    return found


def writes(listed: Sequence[KvWrite]) -> list[Argument]:
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
            arguments.append(hold_bytes(write.hold))
        if write.jobs:
            arguments += new_jobs(write.jobs)
    return arguments


async def audit(link: RedisClient, behind: bytes, limit: int) -> tuple[bytes, int]:
    """Write the index of some entries again where it is lost. Returns where the scan ended, and how many were repaired."""
    ended, put_right = await link.run("audit_kv", [behind, limit], repeat=True)
    return ended, int(put_right)


async def export(link: RedisClient, after: tuple[str, str] | None, limit: int) -> list[KvEntry]:
    told = await link.run("export_kv", [b"" if after is None else _field(*after), limit], repeat=True)
    fields = (field.partition(b"\x00") for field in told[::2])
    known = [(*known_names([kind]), name, text) for (kind, _, name), text in zip(fields, told[1::2], strict=True)]
    return await _readable(link, [each for each in known if len(each) == 3])


async def restore(link: RedisClient, rows: Iterable[KvEntry]) -> None:
    texts = {_field(row.kind, row.name): _row(row) for row in rows}
    if texts:
        await link.run("restore_kv", [part for pair in texts.items() for part in pair], repeat=True)


def _field(kind: str, name: str) -> bytes:
    return escaped(kind) + b"\x00" + escaped(name)


def _id(job: str | None) -> bytes:
    return b"" if job is None else checked_id(job)


def _row(row: KvEntry) -> bytes:
    job = _id(row.job)
    return _ROW.pack(row.version, NONE if row.due_at is None else row.due_at, len(job)) + job + row.text.encode()


def _entry(kind: str, name: str, text: bytes) -> KvEntry:
    version, due_at, length = _ROW.unpack_from(text)
    at = _ROW.size + length
    job = id_text(text[_ROW.size : at]) if length else None
    return KvEntry(kind, name, text[at:].decode(), int(version), None if due_at == NONE else int(due_at), job)
