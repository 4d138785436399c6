"""Finds the best jobs over several lanes or lines.

A lane is the ready jobs of one queue, task and routing key; the claim index keeps each lane in claim order. SQLite merges
the lanes of a compound SELECT by their heads and stops at the limit. So a claim reads as many rows as it takes, plus one per
lane, whatever else waits.

**Many lanes.** A store with very many queues has as many lanes. There a claim for every queue reads lines instead: the ready
jobs of one task and routing key in all queues. They have an index of their own, which the first claim that meets more than
`LANES_READ` lanes creates; a store with few queues does not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from perdure.storage.contract import Claim, Want

from ..connection.work import Work
from ..limits.limit_gates import PausedQueues, Wanted
from ..queries import load
from ..reading.records import MAY_RUN, WHOLE, json_text, lists_of
from .claimed_rows import CLAIMED_RECORD, NO_ROWS, ClaimedRows, by_number, claim_parameters, read_rows

MERGED_AT_ONCE = (2, 4, 8, 16, 32, 64, 128)  # few sizes, so that there are few statements; SQLite's own limit is 500
LANES_READ = 128  # lanes that the state of a claim names; it names one more if there are more
NAMES = {"lane": ("queue", "task", "routing_key"), "line": ("task", "routing_key")}
PAUSED_AT_ONCE = 20_000  # jobs of paused queues that one claim takes out of the lines

_sql = load("lanes", claimed=CLAIMED_RECORD, whole=WHOLE, may_run=MAY_RUN)

Lane = tuple[str, str, str | None]  # queue, task, routing key
Line = tuple[str, str | None]  # task, routing key


class Lanes:
    """The lanes of a store as one claim has found them."""

    def __init__(self, work: Work, found: Sequence[Lane], paused: PausedQueues) -> None:
        self._work = work
        self._found = found
        self._paused = paused

    def lanes(self, want: Want) -> list[Lane]:
        """The lanes that a want asks for."""
        lanes = self._found
        if len(lanes) > LANES_READ:  # these are not all
            queues = (None,) if want.queues is None else dict.fromkeys(want.queues)
            texts = [self._work.connection.value(_sql["lanes"], (queue,)) for queue in queues]
            lanes = [tuple(lane) for text in texts for lane in lists_of(text)]
        return [lane for lane in lanes if Wanted(want, self._paused).lane(*lane)]

    def uses_lines(self, want: Want) -> bool:
        """Whether a claim for this want reads lines, and not lanes."""
        return len(self._found) > LANES_READ and want.queues is None

    def lines(self, want: Want) -> list[Line]:
        """The lines that a want of every queue asks for."""
        connection = self._work.connection
        if not connection.rows(_sql["has_lines"]):
            connection.rows(_sql["make_lines"])
        wanted = Wanted(want, self._paused)
        lines: list[Line] = [tuple(line) for line in lists_of(connection.value(_sql["lines"]))]
        return [line for line in lines if wanted.line(*line)]

    def skip_paused(self, want: Want, now: int) -> bool:
        """Take jobs of paused queues out of the lines that this want would read, so that no claim reads them again until
        their queue is resumed. False: there are more of them than one claim may take out, and the next claim continues."""
        if not self._paused or not self.uses_lines(want) or want.alone:
            return True
        lines = self.lines(want)
        window = want.limit
        skipped = 0
        while skipped < PAUSED_AT_ONCE:
            first = _best_numbers(self._work, "line", lines, window, now)
            text = self._work.connection.value(_sql["in_paused_queues"], (json_text(first),))
            paused = lists_of(text)
            if not set(paused) & set(first[: want.limit]):
                return True
            self._work.connection.change(_sql["hold_up"], (text,))
            skipped += len(paused)
            window = min(4 * window, PAUSED_AT_ONCE)
        return False


def best_merged(work: Work, claim: Claim, kind: str, lanes: Sequence[Lane | Line], limit: int, now: int) -> ClaimedRows:
    """The best jobs of several lanes or lines (`kind`), merged by their heads."""
    if not lanes:
        return NO_ROWS
    if len(lanes) <= MERGED_AT_ONCE[-1]:
        size, parameters = _parameters(kind, lanes)
        return read_rows(work, _best_of_lanes(kind, size), claim_parameters(claim, now) | parameters | {"limit": limit})
    return by_number(work, claim, _best_numbers(work, kind, lanes, limit, now), now)


def _best_numbers(work: Work, kind: str, lanes: Sequence[Lane | Line], limit: int, now: int) -> list[int]:
    """The rows of the best jobs, also of more lanes than one statement can merge: group by group, then the best of all."""
    heads: list[tuple[int, int, int, str]] = []
    most = MERGED_AT_ONCE[-1]
    for begin in range(0, len(lanes), most):
        size, parameters = _parameters(kind, lanes[begin : begin + most])
        heads += work.connection.rows(_heads_of_lanes(kind, size), parameters | {"now": now, "limit": limit})
        heads = sorted(heads, key=lambda head: (-head[1], head[2], head[3]))[:limit]
    return [head[0] for head in heads]


@cache
def _best_of_lanes(kind: str, size: int) -> str:
    return _sql["best_of_lanes"].replace("{lanes}", _merge(kind, size))


@cache
def _heads_of_lanes(kind: str, size: int) -> str:
    return f"{_merge(kind, size)} ORDER BY priority DESC, rank, id LIMIT :limit"


def _merge(kind: str, size: int) -> str:
    return " UNION ALL ".join(_sql[kind].replace("{lane}", str(number)) for number in range(size))


def _parameters(kind: str, lanes: Sequence[Lane | Line]) -> tuple[int, dict[str, Any]]:
    """The size of the statement for these lanes, and its parameters; those that are left over match nothing."""
    size = next(size for size in MERGED_AT_ONCE if size >= len(lanes))
    filled = [*lanes, *[(None,) * len(NAMES[kind])] * (size - len(lanes))]
    return size, dict(zip(_names(kind, size), chain.from_iterable(filled), strict=True))


@cache
def _names(kind: str, size: int) -> list[str]:
    return [f"{name}{number}" for number in range(size) for name in NAMES[kind]]
