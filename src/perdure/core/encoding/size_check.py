"""Measures a value before it is encoded as JSON, with a bounded amount of work.

Writing a value takes time in proportion to its text, and the text may be far larger than the value: a list may hold the
same long text a thousand times. So the least size that the text can have is added up first, level by level, until it is
beyond the limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from ..validation import MAX_DEPTH

_SMALL = frozenset((int, float, bool, type(None)))  # of one character or more
_BYTES = (bytes, bytearray, memoryview)
_LISTS = (tuple, set, frozenset)
_MANY = 64  # from here on it pays to look at all types at once
_DEEPEST = 2 * MAX_DEPTH  # what is deeper is refused by the encoder


class Measured(NamedTuple):
    """What was seen of a value. `size`: bytes of JSON that it takes at least; beyond the limit it is not exact."""

    size: int
    changes: bool  # it holds something that JSON gives back as something else, unless an annotation says what it was


_SMALL_ONE = Measured(1, False)


def measure(value: Any, limit: int) -> Measured:
    """Add up the size that the JSON text of a value has at least, until it is beyond the limit."""
    kind = type(value)
    if kind in _SMALL:
        return _SMALL_ONE
    if kind is str:
        return Measured(len(value), False)
    size, changes = 0, False
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for part in level:
            kind = type(part)
            if kind is list:
                size += _size_of_all(part, limit - size, below)
            elif kind is dict:
                size += _size_of_all(part.values(), limit - size, below)
                for key in part:
                    if type(key) is str:
                        size += 3 + len(key)  # quotes and a colon
                    else:
                        changes = changes or not isinstance(key, str)
            else:
                more, other = _size_of_other(part, limit - size, below)
                size += more
                changes = changes or other
            if size > limit:
                return Measured(size, changes)
        if not below:
            break
        level = below
    return Measured(size, changes)


def _size_of_all(parts: Collection[Any], left: int, below: list[Any]) -> int:
    """The least size of these parts, without those that are to be looked at on the level below."""
    size = 2 * len(parts)  # a character and a comma for each
    if size > left:
        return size
    if len(parts) > _MANY:
        kinds = set(map(type, parts))
        if kinds <= _SMALL:
            return size
        if kinds == {str}:
            return size + sum(map(len, parts))
    for part in parts:
        kind = type(part)
        if kind is str:
            size += len(part)
        elif kind not in _SMALL:
            below.append(part)
    return size


def _size_of_other(part: Any, left: int, below: list[Any]) -> tuple[int, bool]:
    """The same for whatever is neither a list nor a dict, and whether JSON gives it back as something else."""
    if isinstance(part, _BYTES):
        return len(part), True
    if isinstance(part, _LISTS):
        return _size_of_all(part, left, below), True
    if isinstance(part, list):
        return _size_of_all(part, left, below), False
    if isinstance(part, Mapping):
        changes = any(not isinstance(key, str) for key in part)
        return _size_of_all(part.values(), left, below), changes
    if isinstance(part, str):
        return len(part), False
    fields = _fields(part)
    return max(0, _size_of_all(fields, left, below) - 2 * len(fields)), False  # some may be left out


def _fields(value: Any) -> list[Any]:
    """The values of an object's fields, of those kinds that are written field by field."""
    names = getattr(type(value), "__struct_fields__", None)
    if names is None and is_dataclass(value):
        names = [name for name in value.__dataclass_fields__ if not name.startswith("_")]
    return [getattr(value, name, None) for name in names or ()]
