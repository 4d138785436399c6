"""Reads the texts that flows keep in the store: calls to undo, and subscriptions."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..observe import log
from ..storage.contract import KvEntry

T = TypeVar("T")


def read_or_log(row: KvEntry, kind: type[T]) -> T | None:
    """What an entry holds. None if it cannot be read, which is logged: the others are used without it."""
    try:
        return msgspec.json.decode(row.text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        log.text_unreadable(row.kind, row.name, error)
        return None
