"""Exports whole jobs and kept keys, and restores them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from perdure.errors import StoreError
from perdure.storage.contract import JobDump, KeptKey
from perdure.storage.rules.fairness import accounts_of

from ..connection.client import RedisClient
from ..keys import account_bytes, id_bytes, id_text, id_texts, require_id
from ..rows import NONE, body_of, outcome_of, row_of
from ..script_args import Argument
from .queues import lines_of, lines_text
from .records import records_of
from .unreadable import instant_now, readable_or_marked

CHUNK = 500
_KEPT = Struct("<d16s")


async def export(client: RedisClient, after: tuple[int, str] | None, limit: int) -> list[JobDump]:
    carried: list[JobDump] = []
    while len(carried) < limit:
        position = ("-inf", b"") if after is None else (after[0], id_bytes(after[1]) or b"")
        asked = min(limit - len(carried), CHUNK)
        told, ids, logs, *edges = await client.run("export", [*position, asked], repeat=True)
        lines = {id_text(id): lines_of(text) for id, text in zip(ids, logs, strict=True) if text}
        waits_for, kept_for = (
            {id_text(id): id_texts(text) for id, text in zip(ids, texts, strict=True) if text} for texts in edges
        )
        carried += [
            JobDump(record, *(tuple(found.get(record.id, ())) for found in (lines, waits_for, kept_for)))
            for record in readable_or_marked(records_of(told), instant_now(), newest_first=False)
        ]
        if len(ids) < asked or not carried:
            break
        after = (carried[-1].record.created_at, carried[-1].record.id)
    return carried


async def restore(client: RedisClient, now: Any, origin: bytes, jobs: Sequence[JobDump]) -> None:
    accounts = accounts_of(job.record for job in jobs)
    arguments: list[Argument] = [now, origin, len(accounts)]
    for account, rank in accounts.items():
        arguments += (account_bytes(account), rank)
    for job in jobs:
        record = job.record
        has_outcome = record.result is not None or record.reason is not None
        arguments += (
            require_id(record.id),
            row_of(record, has_log=bool(job.lines)),
            body_of(record),
            b"".join(map(require_id, job.waits_for)),
            b"".join(map(require_id, job.kept_for)),
            outcome_of(record.result, record.reason) if has_outcome else b"",
            (record.errors or "").encode(),
            (record.progress or "").encode(),
            lines_text(job.lines),
        )
    taken = await client.run("restore", arguments, repeat=True)
    if taken:
        raise StoreError(f"the unique key of job {id_text(taken[0])} is held by job {id_text(taken[1])}")


async def export_keys(client: RedisClient, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
    following, found = await client.command("HSCAN", client.keys["kept_keys"], cursor or "0", "COUNT", limit)
    keys = [_kept(key, text) for key, text in zip(found[::2], found[1::2], strict=True)]
    return keys, None if following == b"0" else following.decode()


async def restore_keys(client: RedisClient, keys: Sequence[KeptKey]) -> None:
    arguments: list[Argument] = []
    for kept in keys:
        ends = NONE if kept.ends is None else kept.ends
        arguments += (kept.key.encode(), _KEPT.pack(ends, require_id(kept.job)))
    if arguments:
        await client.run("restore_keys", arguments, repeat=True)


def _kept(key: bytes, text: bytes) -> KeptKey:
    ends, job = _KEPT.unpack(text)
    return KeptKey(key.decode(), id_text(job), None if ends == NONE else int(ends))
