"""Successes of jobs whose rows lie close together, as those of one claim mostly do.

Such jobs are written along their rows, from the first to the last, with one text that tells of each row which job is
expected there and when it began: no search for each id, and no list that SQLite would have to make of them first. Row
numbers are only a hint. A VACUUM may give a job another one, so each row is compared with the id that is expected there; a
row that is another job's is not written, and then everything is done again by the ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from holdfast.job import Record

APART = 3  # rows for each job, at most, from the first to the last
MOST = 20_000  # jobs whose rows are remembered
LATE = 10**8  # microseconds between the first start and the last that can be told
_ROW, _NO_ROW, _WIDTH = "%s%8d", " " * 44, 44  # an id and when it began, counted from the first; see succeed_near


class Near(NamedTuple):
    """Rows from the first to the last; the first of the starts; and what is expected in each row."""

    first: int
    last: int
    began: int
    rows: bytes


class Numbers:
    """In which rows the jobs are that were claimed here."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def learn(self, records: Sequence[Record], numbers: Sequence[int]) -> None:
        if len(self._numbers) > MOST:
            self._numbers.clear()  # of jobs whose end was never told
        self._numbers.update(zip([record.id for record in records], numbers, strict=True))

    def near(self, started: Mapping[str, int | None]) -> Near | None:
        """Where these jobs are, each with its start; that is forgotten now. None: not known, or not close together."""
        numbers = [self._numbers.pop(id, -1) for id in started]
        first, last = min(numbers), max(numbers)
        if first < 0 or last - first >= APART * len(numbers):
            return None
        starts = [at for at in started.values() if at is not None]
        if len(starts) < len(numbers) or max(starts) - (began := min(starts)) >= LATE:
            return None
        since = [at - began for at in starts]
        if last - first + 1 == len(numbers) and numbers == [*range(first, last + 1)]:
            rows = _ROW * len(numbers) % tuple(chain.from_iterable(zip(started, since, strict=True)))
        else:
            places = [_NO_ROW] * (last - first + 1)
            for number, told in zip(numbers, zip(started, since, strict=True), strict=True):
                places[number - first] = _ROW % told
            rows = "".join(places)
        text = rows.encode()
        return Near(first, last, began, text) if len(text) == _WIDTH * (last - first + 1) else None

    def forget(self, ids: Sequence[str]) -> None:
        """Their ends are told in another way."""
        for id in ids:
            self._numbers.pop(id, None)
