"""Job ids: UUIDv7, rising within a process. An id only breaks ties, so that a batch keeps its list order;
nothing reads time or order from it beyond that.

Inside Holdfast an id is its canonical text; `uuid.UUID` exists only at the door.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from uuid import UUID

from .errors import InvalidCall

_lock = threading.Lock()
_last = 0
_SEQUENCE_BITS = 32  # millisecond · 2^32 + sequence: the 12 bits of rand_a and the first 20 of rand_b
_BLOCK = struct.Struct("=256Q")
_fresh: list[int] = []


def new_id() -> str:
    """A new id, greater than every id this process has made before."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """New ids, rising, all greater than every id this process has made before."""
    global _last
    made = []
    with _lock:
        while len(_fresh) < count:
            _draw()
        earliest = (time.time_ns() // 1_000_000) << _SEQUENCE_BITS
        value = _last
        for _ in range(count):
            random = _fresh.pop()
            if value < earliest:
                # most of the sequence is drawn at random, so that two processes of one millisecond interleave
                value = earliest | (random >> 34)
            else:
                value += 1 + (random >> 56)
            parts = (
                value >> _SEQUENCE_BITS + 16,
                value >> _SEQUENCE_BITS & 0xFFFF,
                value >> 20 & 0xFFF,
                0x8000 | value >> 6 & 0x3FFF,
                (value & 0x3F) << 42 | random & 0x3FF_FFFF_FFFF,
            )
            made.append("%08x-%04x-7%03x-%04x-%012x" % parts)  # noqa: UP031  # in half the time of an f-string
        _last = value
    return made


def new_stamp() -> int:
    """A random positive 63-bit number that marks one claim (it fits every store's signed integer)."""
    return (int.from_bytes(os.urandom(8), "big") >> 1) or 1


def id_text(ref: object) -> str:
    """The canonical text of a job id given as UUID, text, handle or job."""
    if isinstance(ref, UUID):
        return str(ref)
    if isinstance(ref, str):
        try:
            return str(UUID(ref))
        except ValueError:
            raise InvalidCall(f"{ref!r} is not a job id (a UUID)") from None
    inner = getattr(ref, "id", None)
    if isinstance(inner, UUID):
        return str(inner)
    raise InvalidCall(f"a job id, handle or job is needed, not {type(ref).__name__}")


def _draw() -> None:
    _fresh.extend(_BLOCK.unpack(os.urandom(_BLOCK.size)))


def _after_fork() -> None:
    # a child must not repeat its parent's draws, nor wait for a lock that a vanished thread holds
    global _lock
    _lock = threading.Lock()
    _fresh.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
