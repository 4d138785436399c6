"""Arguments that are texts, numbers and truth values, each of the very type that its annotation names.

Their payload is right as soon as it is written: it need not be read again to be checked, which is most of a call's work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from . import codec

_encoded = codec.encoded  # found without a look into the other module, once for each of thousands of calls
_KINDS: tuple[type[Any], ...] = (str, bool, int, float)


class PlainArguments:
    """The parameters of a task that has no others. `names`: of each field, the parameter's."""

    def __init__(self, names: Mapping[str, str], kinds: Sequence[type[Any]]) -> None:
        self._kinds = list(kinds)
        self._texts = [position for position, kind in enumerate(kinds) if kind is str]
        self._numbers = not {str, bool}.issuperset(kinds)
        self._given = msgspec.defstruct("Given", list(names), rename=dict(names), gc=False)

    def text(self, args: tuple[Any, ...], limit: int) -> str | None:
        """The payload of a call with all arguments by their places; None: they have to be looked at, one by one."""
        if len(args) == 1:  # as most calls have: a third of the time, without a list
            of_kind = type(args[0]) is self._kinds[0]
        else:
            of_kind = [type(value) for value in args] == self._kinds
        if not of_kind or (self._numbers and not all(map(_fits, args))):
            return None
        for position in self._texts:
            if len(args[position]) > limit:
                return None
        try:
            data = _encoded(self._given(*args))
        except UnicodeEncodeError:  # a lone surrogate
            return None
        return data.decode() if len(data) <= limit else None


def plain_arguments(names: Mapping[str, str], kinds: Sequence[Any]) -> PlainArguments | None:
    """How such arguments are written; None: some may be of another kind."""
    return (
        PlainArguments(names, kinds)
        if names and all(any(kind is plain for plain in _KINDS) for kind in kinds)
        else None
    )


def _fits(value: str | bool | int | float) -> bool:
    """Whether JSON has a form for it that every reader takes."""
    if type(value) is int:
        return codec.SMALLEST <= value <= codec.GREATEST
    return type(value) is not float or isfinite(value)
