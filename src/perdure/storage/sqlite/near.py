"""Successes of jobs whose rows lie close together, as those of one claim mostly do.

Such jobs are written along their rows, from the first to the last, with one text that tells of each row which job is
expected there, when it began and where its result is: no search for each id, and no list that SQLite would have to make of
them first. Row numbers are only a hint. A file that is put together anew may number them anew, so each row is compared with
the id that is expected there; a row that is another job's is not written, and then everything is done again by the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import attrgetter
from typing import NamedTuple

from perdure.core.lifecycle import Change
from perdure.core.record import Record

APART = 3  # rows for each job, at most, from the first to the last
MOST = 20_000  # jobs whose rows are remembered
LATE = 10**8  # microseconds between the first start and the last that can be told
HEAVY = 8_000_000  # bytes of results that are too many for one text

_id, _started_at, _result = attrgetter("id"), attrgetter("started_at"), attrgetter("result")
# an id, when it began, counted from the first, and where its result begins and how long it is; see succeed_near
_ROW, _WIDTH = "%s%8d%8d%8d", 60


class RowRange(NamedTuple):
    """Rows from the first to the last; the first of the starts; what is expected in each row; and the results."""

    first: int
    last: int
    began: int
    rows: bytes
    results: bytes


class RowNumbers:
    """In which rows the jobs are that were claimed here."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def learn(self, records: Sequence[Record], numbers: Sequence[int]) -> None:
        if len(self._numbers) > MOST:
            self._numbers.clear()  # of jobs whose end was never told
        self._numbers.update(zip(map(_id, records), numbers, strict=True))

    def near(self, ended: Sequence[Change]) -> RowRange | None:
        """Where these jobs are, which all have results, or none of them; their rows are forgotten now. None: that is not
        known, or they are not close together."""
        ids = [*map(_id, ended)]
        numbers = self.forget(ids)
        first, last = min(numbers), max(numbers)
        if first < 0 or last - first >= APART * len(numbers):
            return None
        starts: list[int] = [*map(_started_at, ended)]
        if None in starts or max(starts) - (began := min(starts)) >= LATE:
            return None
        results = [result.encode() for result in map(_result, ended) if result is not None]
        lengths = [*map(len, results)] or [0] * len(ids)
        if sum(lengths) > HEAVY:
            return None
        told = zip(ids, [at - began for at in starts], accumulate(lengths, initial=1), lengths, strict=False)
        if last - first + 1 == len(numbers) and numbers == [*range(first, last + 1)]:
            rows = _ROW * len(numbers) % tuple(chain.from_iterable(told))
        else:
            places = [" " * _WIDTH] * (last - first + 1)
            for number, one in zip(numbers, told, strict=True):
                places[number - first] = _ROW % one
            rows = "".join(places)
        text = rows.encode()
        fits = len(text) == _WIDTH * (last - first + 1)
        return RowRange(first, last, began, text, b"".join(results)) if fits else None

    def forget(self, ids: Sequence[str]) -> list[int]:
        """Their ends are about to be told. Gives their rows, -1 where that is not known."""
        return [*map(self._numbers.pop, ids, repeat(-1))]
