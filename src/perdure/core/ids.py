"""Job ids: UUIDv7, rising within a process. An id only breaks ties, so that a list keeps its order; nothing else reads
time or order from it.

Inside Perdure an id is its canonical text; `uuid.UUID` exists only at the public API.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from uuid import UUID

from ..errors import InvalidCall

_lock = threading.Lock()
_last = 0
_SEQUENCE_BITS = (
    26  # millisecond · 2^26 + sequence: the 12 bits of rand_a and the first 14 of rand_b, then 48 random ones
)
_LOW_BITS = 14  # of the sequence, behind the variant
_LOW = (1 << _LOW_BITS) - 1
_TAIL = 12  # hexadecimal digits
_BLOCK = 256
_tails: list[str] = []  # random digits, not yet used: each question to the system costs time


def new_id() -> str:
    """A new id, greater than every id this process has made before."""
    with _lock:
        number, tail = _next(1), _tails.pop()
    return f"{_front(number >> _LOW_BITS)}-{0x8000 | number & _LOW:04x}-{tail}"


def new_ids(count: int) -> list[str]:
    """New ids, rising, all greater than every id this process has made before."""
    made: list[str] = []
    with _lock:
        number = _next(count)
        while len(made) < count:
            low = number & _LOW
            several = min(count - len(made), _LOW + 1 - low)  # that have all but their last digits in common
            front = f"{_front(number >> _LOW_BITS)}-"
            lasts = range(0x8000 | low, (0x8000 | low) + several)
            digits = struct.pack(f">{several}H", *lasts).hex("-", 2).split("-")
            made += [f"{front}{last}-{tail}" for last, tail in zip(digits, _tails[-several:], strict=True)]
            del _tails[-several:]
            number += several
    return made


def new_stamp() -> int:
    """A random positive 63-bit number that marks one claim (it fits every store's signed integer)."""
    return (int.from_bytes(os.urandom(8), "big") >> 1) or 1


def id_text(ref: object, what: str = "") -> str:
    """The canonical text of a job id given as UUID, text, handle or job. `what` names the option in the error."""
    if isinstance(ref, UUID):
        return str(ref)
    if isinstance(ref, str):
        try:
            return str(UUID(ref))
        except ValueError:
            raise InvalidCall(f"{what and f'{what}: '}{ref!r} is not a job id (a UUID)") from None
    inner = getattr(ref, "id", None)
    if isinstance(inner, UUID):
        return str(inner)
    raise InvalidCall(f"{what and f'{what}: '}a job id, handle or job is needed, not {type(ref).__name__}")


def _next(count: int) -> int:
    """The first of so many new numbers, each a millisecond and a sequence; there are tails for them."""
    global _last
    if len(_tails) < count:
        _tails.extend(os.urandom((count + _BLOCK) * _TAIL // 2).hex("-", _TAIL // 2).split("-"))
    earliest = (time.time_ns() // 1_000_000) << _SEQUENCE_BITS
    if _last < earliest:
        # most of the sequence is drawn at random, so that two processes of one millisecond interleave
        _last = earliest | int(_tails[-1][:7], 16) >> 3
    first = _last + 1
    _last += count
    return first


def _front(high: int) -> str:
    return f"{high >> 28:08x}-{high >> 12 & 0xFFFF:04x}-7{high & 0xFFF:03x}"


def _after_fork() -> None:
    # a child must not repeat its parent's draws, nor wait for a lock that a vanished thread holds
    global _lock
    _lock = threading.Lock()
    _tails.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
