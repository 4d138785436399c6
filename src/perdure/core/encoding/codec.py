"""Encodes values as JSON text and decodes them. It refuses everything that some store or reader could not return unchanged.

Refused: what has no JSON form, NaN and infinities (JSON has none), integers beyond 64 bits, lone surrogates, more than
64 levels, two keys of an object that become one text (`{1: …, "1": …}`), and texts beyond the size limit.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Coroutine, Iterator
from math import isfinite
from typing import Any, TypeVar

import msgspec

from ...errors import InvalidCall
from ..outcome import Outcome
from ..validation import MAX_BYTES, MAX_DEPTH
from .size_check import measure

T = TypeVar("T")

SMALLEST = -(2**63)
GREATEST = 2**63 - 1

_ONLY_KEYS_COME_HERE = (bool, type(None), tuple, frozenset)  # as values they have a form
_MANY_DIGITS = re.compile(rb"\d{19}")


def encode(value: Any, subject: str, limit: int = MAX_BYTES) -> str:
    """The JSON text of a value. `subject` names it in the error: "the result of send_email"."""
    if measure(value, limit).size > limit:
        raise InvalidCall(f"{subject} {far_too_large(limit)}")
    data, flaw = _encode_or_explain(value)
    if flaw is None and len(data) > limit:
        flaw = too_large(len(data), limit)
    if flaw is not None:
        raise InvalidCall(f"{subject} {flaw}")
    return data.decode()


def encode_object(given: dict[str, Any], subject: str, limit: int) -> tuple[bytes, bool]:
    """The JSON text of arguments by name, and whether JSON changes some of their values. The error names the one that is
    wrong."""
    plain, changes = True, False
    for name, value in given.items():
        kind = type(value)
        if kind is bool or value is None or (kind is str and len(value) <= limit):
            continue
        if kind is int and SMALLEST <= value <= GREATEST:
            continue
        if kind is float and isfinite(value):
            continue
        plain = False
        size, changed = measure(value, limit)
        if size > limit:
            raise InvalidCall(f"{subject}: argument {name!r} ({kind.__name__}) {far_too_large(limit)}")
        changes = changes or changed
    try:
        data = _encode(given)
        good = plain or len(data) > limit or _flaw_of(data, given, depth=MAX_DEPTH + 1) is None
    except Exception:  # a model of the user's may raise anything
        good = False
    if not good:
        raise _name_culprit(given, subject)
    if len(data) > limit:
        raise InvalidCall(f"{subject}: the arguments together have {len(data)} bytes of JSON, more than {limit}")
    return data, changes


def sorted_text(value: Any) -> bytes:
    """One text for equal values: keys, fields and sets sorted."""
    return _encode_sorted(value)


def decoder(kind: Any) -> Callable[[str | bytes], Any]:
    """A function that reads JSON text as `kind`. TypeError when JSON cannot distinguish the type."""
    return msgspec.json.Decoder(kind, dec_hook=_from_plain).decode


def decode(text: str | bytes) -> Any:
    """JSON text as plain values."""
    return _decode_plain(text)


def too_large(size: int, limit: int) -> str:
    return f"has {size} bytes of JSON, more than {limit}; store large things elsewhere and pass a reference"


def far_too_large(limit: int) -> str:
    return f"has more than {limit} bytes of JSON; store large things elsewhere and pass a reference"


# ---- what types msgspec does not know --------------------------------------------------------------
def _to_plain(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    kind = type(value).__qualname__
    if isinstance(value, _ONLY_KEYS_COME_HERE):
        raise NotImplementedError(f"the keys of an object are texts or numbers, not {kind}")
    if isinstance(value, Outcome):
        raise NotImplementedError(f"{kind}(…) is an outcome, which is raised and not returned")
    if isinstance(value, Coroutine):
        raise NotImplementedError("it is a coroutine that was not awaited")
    raise NotImplementedError(f"nothing is known of type {kind}")


def _from_plain(kind: type[T], value: Any) -> T:
    if _is_pydantic(kind):
        # by way of JSON text: only there do strict models take texts for dates and numbers for decimals
        return kind.model_validate_json(_encode(value))  # type: ignore[attr-defined, no-any-return]
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise TypeError(f"`{getattr(kind, '__name__', kind)}` has no JSON form")


def _is_pydantic(kind: Any) -> bool:
    # only when the user has imported it: looking must not cost anybody else an import
    pydantic = sys.modules.get("pydantic")
    model = getattr(pydantic, "BaseModel", None)
    return model is not None and isinstance(kind, type) and issubclass(kind, model)


_encode = msgspec.json.Encoder(enc_hook=_to_plain).encode
encoded = _encode  # the JSON text of a value of which nothing can be wrong but its characters
_encode_sorted = msgspec.json.Encoder(enc_hook=_to_plain, order="sorted").encode
_decode_plain = msgspec.json.Decoder().decode


# ---- flaws -----------------------------------------------------------------------------------------
def _name_culprit(given: dict[str, Any], subject: str) -> InvalidCall:
    for name, value in given.items():
        _, flaw = _encode_or_explain(value)
        if flaw is not None:
            return InvalidCall(f"{subject}: argument {name!r} ({type(value).__name__}) {flaw}")
    return InvalidCall(f"{subject}: the arguments have no JSON form")


def _encode_or_explain(value: Any) -> tuple[bytes, str | None]:
    try:
        data = _encode(value)
        return data, _flaw_of(data, value, depth=MAX_DEPTH)
    except UnicodeEncodeError:
        return b"", "has a lone surrogate, which is no character"
    except RecursionError:
        return b"", f"is nested more than {MAX_DEPTH} levels deep, or contains itself"
    except (NotImplementedError, TypeError) as error:
        return b"", f"has no JSON form: {error}"
    except Exception as error:  # a model of the user's may raise anything
        return b"", f"cannot be written as JSON: {error}"


def _flaw_of(data: bytes, value: Any, *, depth: int) -> str | None:
    """What is wrong with an encoded value. Cheap checks of the text come first; only suspicious values are walked
    through."""
    if b"null" in data and not all(map(isfinite, _floats(msgspec.to_builtins(value, enc_hook=_to_plain)))):
        return "contains NaN or an infinity, which JSON does not have"
    plain = _decode_plain(data)
    if data.count(b"[") + data.count(b"{") > depth and _depth(plain) > depth:
        return f"is nested more than {MAX_DEPTH} levels deep"
    if _MANY_DIGITS.search(data) and not all(SMALLEST <= number <= GREATEST for number in _integers(plain)):
        return "contains an integer beyond 64 bits"
    if b":" in data and _encode(plain) != data and _collides(data):
        return "has two keys that are the same text in JSON"
    return None


def _leaves(value: Any) -> Iterator[Any]:
    todo = [value]
    while todo:
        here = todo.pop()
        if isinstance(here, dict):
            todo += here.values()
        elif isinstance(here, list | tuple | set | frozenset):
            todo += here
        else:
            yield here


def _floats(value: Any) -> Iterator[float]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, float))


def _integers(value: Any) -> Iterator[int]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, int))


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [inner for inner in level if isinstance(inner, dict | list)]:
        depth += 1
        level = [leaf for inner in level for leaf in (inner.values() if isinstance(inner, dict) else inner)]
    return depth


def _collides(data: bytes) -> bool:
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    json.loads(data, object_pairs_hook=look)
    return found
