"""The status board: shared memory in which a runner writes what it holds, and its supervisor what it has renewed.

The runner writes and the supervisor reads, whatever the runner's interpreter is doing, and after its death. Only renewals
go the other way. There are no locks: the runner writes an entry before the byte that makes it valid, and a reader sees an
entry that is half written only as a hold that no store knows.

    header    pulse of the runner's loop · attempts confirmed · positions ever used · threads given up · claims under way
    status    one byte a position: FREE, CLAIMED, STARTED, ELSEWHERE (in a child process), ENDED (over, not yet confirmed)
    entries   by position: id, stamp, attempt, whether a timeout is retried, lease, timeout, when asked for; when started;
              and, written by the supervisor, the hold that it renewed and when it asked

Times are seconds since boot, `started_at` is the store's microseconds.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from ...core.clock import boottime
from ...core.record import Hold

if TYPE_CHECKING:
    from ..running.attempt import Attempt

FREE, CLAIMED, STARTED, ELSEWHERE, ENDED = range(5)
POSITIONS = 16_384  # a worker holds far fewer jobs at once; the runner alone renews what is beyond that
CLAIMS = 8  # claims under way at once

_HEADER = 128
_PULSE, _CONFIRMED, _USED, _GIVEN_UP, _CLAIMS = 0, 8, 16, 24, 32
_HOLD = struct.Struct("<36s4xqIIqqd")  # id, stamp, attempt, retries, lease, timeout, asked at
_START_TIMES = struct.Struct("<qd")  # started at, since boot
_RENEWED = struct.Struct("<36s4xq")  # id, stamp; then, as the last to be written, when it was asked for
_FLOAT, _INT = struct.Struct("<d"), struct.Struct("<q")
_AT_START = _HOLD.size
_AT_RENEWED = _AT_START + _START_TIMES.size
_AT_ASKED = _AT_RENEWED + _RENEWED.size
_ENTRY = _AT_ASKED + _FLOAT.size
_ENTRIES = _HEADER + POSITIONS
SIZE = _ENTRIES + POSITIONS * _ENTRY
_TAKEN = re.compile(rb"[^\0]")


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A hold as the supervisor reads it from the board. Durations are microseconds; -1: none."""

    position: int
    status: int
    hold: Hold
    retries: bool
    lease: int
    timeout: int
    asked_at: float
    started_at: int
    started_boot: float

    @property
    def started(self) -> bool:
        return self.status in (STARTED, ELSEWHERE)

    @property
    def deadline(self) -> float:
        """When its time is over."""
        return self.started_boot + self.timeout / 1_000_000 if self.started and self.timeout >= 0 else float("inf")


def new_board() -> int:
    """A file descriptor of empty shared memory, for a runner to inherit."""
    if sys.platform == "linux":
        board = os.memfd_create("perdure board")
    else:
        with tempfile.TemporaryFile() as file:  # it has no name, and is gone when nobody has it open
            board = os.dup(file.fileno())
    os.ftruncate(board, SIZE)
    return board


class RunnerBoard:
    """The runner's side."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._free: list[int] = []
        self._used = 0
        self._confirmed = 0
        self._given_up = 0

    def beat(self) -> None:
        """Write that the event loop is alive."""
        _FLOAT.pack_into(self._memory, _PULSE, boottime())

    def publish(self, attempts: Iterable[Attempt]) -> None:
        """Write that the runner holds these attempts now."""
        memory = self._memory
        for attempt in attempts:
            position = self._take_position()
            if position < 0:
                return
            record, definition = attempt.record, attempt.definition
            timeout = -1 if record.timeout is None else record.timeout
            _HOLD.pack_into(
                memory, _ENTRIES + position * _ENTRY, record.id.encode(), record.stamp, record.attempt,
                definition is None or definition.retries_timeouts, record.lease, timeout, attempt.asked_at,
            )  # fmt: skip
            memory[_HEADER + position] = CLAIMED
            attempt.board_position = position

    def start(self, attempt: Attempt, status: int = STARTED) -> None:
        """Write that the handler starts, before any part of the job is decoded."""
        position = attempt.board_position
        if position >= 0:
            _START_TIMES.pack_into(
                self._memory, _ENTRIES + position * _ENTRY + _AT_START, attempt.started_at, attempt.started_boot
            )
            self._memory[_HEADER + position] = status

    def end(self, attempt: Attempt) -> None:
        """Write that the handler is over; its report is on the way to the store."""
        if attempt.board_position >= 0:
            self._memory[_HEADER + attempt.board_position] = ENDED

    def clear(self, attempt: Attempt) -> None:
        """Write that the runner does not hold the attempt any more."""
        self._confirmed += 1
        _INT.pack_into(self._memory, _CONFIRMED, self._confirmed)
        position = attempt.board_position
        if position >= 0:
            attempt.board_position = -1
            self._memory[_HEADER + position] = FREE
            self._free.append(position)

    def count_given_up_thread(self) -> None:
        """A thread goes on although its job is over."""
        self._given_up += 1
        _INT.pack_into(self._memory, _GIVEN_UP, self._given_up)

    def begin_claim(self, stamp: int) -> None:
        """A claim with this stamp is about to be sent. Until its answer arrives, only the store knows which jobs it took."""
        for number in range(CLAIMS):
            if not self._claim(number):
                _INT.pack_into(self._memory, _CLAIMS + 8 * number, stamp)
                return

    def end_claim(self, stamp: int) -> None:
        """All jobs of this claim are on the board."""
        for number in range(CLAIMS):
            if self._claim(number) == stamp:
                _INT.pack_into(self._memory, _CLAIMS + 8 * number, 0)

    def trust(self, attempt: Attempt) -> None:
        """Read whether the supervisor renewed this lease."""
        position = attempt.board_position
        if position < 0:
            return
        at = _ENTRIES + position * _ENTRY
        (asked,) = _FLOAT.unpack_from(self._memory, at + _AT_ASKED)
        if asked <= attempt.asked_at:
            return
        id, stamp = _RENEWED.unpack_from(self._memory, at + _AT_RENEWED)
        if stamp == attempt.record.stamp and id == attempt.record.id.encode():
            attempt.trust(asked)

    def _take_position(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == POSITIONS:
            return -1
        self._used += 1
        _INT.pack_into(self._memory, _USED, self._used)
        return self._used - 1

    def _claim(self, number: int) -> int:
        stamp: int = _INT.unpack_from(self._memory, _CLAIMS + 8 * number)[0]
        return stamp


class SupervisorBoard:
    """The supervisor's side."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._known: dict[int, tuple[bytes, Seen]] = {}

    @property
    def pulse(self) -> float:
        """When the runner's event loop last wrote that it is alive."""
        value: float = _FLOAT.unpack_from(self._memory, _PULSE)[0]
        return value

    @property
    def confirmed(self) -> int:
        """How many attempts of the runner have ended."""
        value: int = _INT.unpack_from(self._memory, _CONFIRMED)[0]
        return value

    @property
    def given_up(self) -> int:
        """How many threads went on although their job was over."""
        value: int = _INT.unpack_from(self._memory, _GIVEN_UP)[0]
        return value

    def claims(self) -> list[int]:
        """Stamps of the claims under way."""
        return [stamp for stamp in struct.unpack_from(f"<{CLAIMS}q", self._memory, _CLAIMS) if stamp]

    def seen(self) -> Iterator[Seen]:
        """What the runner holds."""
        (used,) = _INT.unpack_from(self._memory, _USED)
        for taken in _TAKEN.finditer(self._memory[_HEADER : _HEADER + used]):
            yield self._seen(taken.start(), taken.group()[0])

    def write_renewal(self, seen: Seen, asked_at: float) -> None:
        """The store prolonged this lease at a request made at `asked_at`. The time is written last, so that it is never
        read with another hold."""
        at = _ENTRIES + seen.position * _ENTRY
        _FLOAT.pack_into(self._memory, at + _AT_ASKED, 0.0)
        _RENEWED.pack_into(self._memory, at + _AT_RENEWED, seen.hold.id.encode(), seen.hold.stamp)
        _FLOAT.pack_into(self._memory, at + _AT_ASKED, asked_at)

    def _seen(self, position: int, status: int) -> Seen:
        at = _ENTRIES + position * _ENTRY
        written = self._memory[at : at + _AT_RENEWED]
        known = self._known.get(position)
        if known is not None and known[0] == written and known[1].status == status:
            return known[1]
        id, stamp, attempt, retries, lease, timeout, asked_at = _HOLD.unpack_from(written)
        started_at, started_boot = _START_TIMES.unpack_from(written, _AT_START)
        hold = Hold(id.decode("ascii", "replace"), attempt, stamp)
        seen = Seen(position, status, hold, bool(retries), lease, timeout, asked_at, started_at, started_boot)
        self._known[position] = (written, seen)
        return seen
