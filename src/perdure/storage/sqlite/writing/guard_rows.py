"""Reads the rows that guards check and changes are written to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.job import State

from ..connection.driver import Connection
from ..connection.work import Work
from ..queries import load
from ..reading.records import json_text, lists_of
from ..upkeep.unreadable import sort_out

_sql = load("guard_rows")


class GuardRow(msgspec.Struct, array_like=True):
    """The columns of a job that guards read, and every field of a record that `write_change` reads or writes. Fields with a
    default are not read; a change sets them."""

    id: str
    queue: str
    state: State
    version: int
    attempt: int
    stamp: int | None
    accepted_stamp: int | None
    hidden: bool
    leased_by: str | None
    leased_until: int | None
    run_at: int
    rank: int
    started_at: int | None
    finished_at: int | None
    unique_key: str | None
    holds_key: bool
    limits: str | None
    parked: bool = False
    failures: int = 0
    losses: int = 0
    suspect: bool = False
    result: str | None = None
    reason: str | None = None
    errors: str | None = None
    next_id: str | None = None
    prune_at: int | None = None
    keep_last: int | None = None


_decoder = msgspec.json.Decoder(list[GuardRow], strict=False)


def read(connection: Connection, ids: Sequence[str]) -> dict[str, GuardRow]:
    """The rows of these jobs, by id."""
    if not ids:
        return {}
    return {row.id: row for row in _decoder.decode(connection.value(_sql["rows"], (json_text(ids),)))}


def read_and_mend(work: Work, ids: Sequence[str], now: int) -> dict[str, GuardRow]:
    """The same under the write lock. A row that cannot be read is set aside first."""
    try:
        return read(work.connection, ids)
    except (msgspec.MsgspecError, UnicodeDecodeError, work.error):
        sort_out(work, lists_of(work.connection.value(_sql["numbers"], (json_text(ids),))), now)
        return read(work.connection, ids)
