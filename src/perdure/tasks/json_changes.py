"""Refuses arguments that JSON would change on their way to the handler: it has no bytes, sets and tuples, and only texts as
keys.

An annotation such as `set[int]` says how to change the value back. Where the annotation says nothing (`Any`, `object`, a
bare `dict`), a set would arrive as a list, and nobody would notice. Such an argument is refused.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

_UNIONS = (typing.Union, types.UnionType)
_LISTS = (list, tuple, set, frozenset)
_BECOMES: tuple[tuple[Any, str, str], ...] = (
    ((bytes, bytearray, memoryview), "would arrive as a base64 text", "annotate it as bytes"),
    ((set, frozenset), "would arrive as a list", "annotate it as set[…], or pass a list"),
    (tuple, "would arrive as a list", "annotate it as tuple[…], or pass a list"),
)


def change_of(kind: Any, value: Any, where: str) -> str | None:
    """What JSON would change about a value, although its annotation does not say how to change it back."""
    while typing.get_origin(kind) is typing.Annotated or hasattr(kind, "__supertype__") or hasattr(kind, "__value__"):
        kind = _inside(kind)
    if kind in (Any, object):
        return _change_within(value, where)
    if typing.get_origin(kind) in _UNIONS:
        return _change_in_union(typing.get_args(kind), value, where)
    if (change := _change_of_keys(kind, value, where)) is not None:
        return change
    return next((change for part in _parts(kind, value, where) if (change := change_of(*part))), None)


def _inside(kind: Any) -> Any:
    """The kind that an alias, a NewType or an Annotated stands for."""
    if typing.get_origin(kind) is typing.Annotated:
        return typing.get_args(kind)[0]
    return getattr(kind, "__supertype__", None) or kind.__value__


def _change_in_union(kinds: tuple[Any, ...], value: Any, where: str) -> str | None:
    """One of the kinds that returns the value unchanged is enough."""
    change = None
    for kind in kinds:
        plain = typing.get_origin(kind) or kind
        if kind in (Any, object) or (isinstance(plain, type) and _may_be(value, plain)):
            change = change_of(kind, value, where)
            if change is None:
                return None
    return change


def _may_be(value: Any, kind: type[Any]) -> bool:
    if typing.is_typeddict(kind):
        return isinstance(value, Mapping)
    return isinstance(value, kind) or (isinstance(value, _LISTS) and issubclass(kind, _LISTS))


def _parts(kind: Any, value: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """What is inside a value of this kind: the kind, the value and the place of each part."""
    whole = typing.get_origin(kind) or kind
    inner = typing.get_args(kind)
    if not isinstance(whole, type):
        return
    if typing.is_typeddict(whole) and isinstance(value, Mapping):
        hints = _hints(whole)
        yield from ((hints.get(name, str), each, f"{where}[{name!r}]") for name, each in value.items())
    elif isinstance(value, Mapping) and issubclass(whole, Mapping):
        content = inner[1] if len(inner) == 2 else Any
        yield from ((content, each, f"{where}[{name!r}]") for name, each in value.items())
    elif isinstance(value, _LISTS) and issubclass(whole, Collection):
        kinds = _kinds_of_entries(whole, inner, len(value))
        for number, (of, each) in enumerate(zip(kinds, value, strict=False)):
            yield of, each, f"{where}[{number}]"
    elif isinstance(value, whole) and (is_dataclass(whole) or hasattr(whole, "__struct_fields__")):
        yield from ((hint, getattr(value, name, None), f"{where}.{name}") for name, hint in _hints(whole).items())


def _change_of_keys(kind: Any, value: Any, where: str) -> str | None:
    whole, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if not isinstance(value, Mapping) or typing.is_typeddict(whole) or (inner and inner[0] not in (Any, object)):
        return None
    return next((change for key in value if (change := _change_of_key(key, where))), None)


def _kinds_of_entries(whole: type[Any], inner: tuple[Any, ...], count: int) -> list[Any]:
    if not inner:
        return [Any] * count
    if issubclass(whole, tuple) and (len(inner) != 2 or inner[1] is not Ellipsis):
        return list(inner)
    return [inner[0]] * count


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return {name: hint for name, hint in typing.get_type_hints(kind).items() if not isinstance(hint, TypeVar)}
    except Exception:  # whoever reads the payload raises the error
        return {}


def _change_within(value: Any, where: str) -> str | None:
    """The same for a value whose annotation says nothing."""
    todo = [(value, where)]
    while todo:
        each, at = todo.pop()
        for kinds, becomes, instead in _BECOMES:
            if isinstance(each, kinds):
                return f"{at}: a value of type {type(each).__name__} {becomes}; {instead}"
        if isinstance(each, Mapping):
            for name, content in each.items():
                if (change := _change_of_key(name, at)) is not None:
                    return change
                todo.append((content, f"{at}[{name!r}]"))
        elif isinstance(each, list):
            todo += [(entry, f"{at}[{number}]") for number, entry in enumerate(each)]
    return None


def _change_of_key(key: Any, where: str) -> str | None:
    if isinstance(key, str):
        return None
    name = type(key).__name__
    return (
        f"{where}: the key {key!r} of type {name} would arrive as a text; annotate it as dict[{name}, …], or use texts"
    )
