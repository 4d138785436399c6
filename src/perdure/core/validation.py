"""Checks names and keys, and holds the limits on sizes: the same rules on every store, before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..errors import InvalidCall
from .job import ANY, Routing

MAX_BYTES: Final = 1 << 20  # payload and result, each
LARGEST_MAX_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 64  # levels of JSON
NAME_BYTES: Final = 200
KEY_BYTES: Final = 512
META_BYTES: Final = 65_536
TAGS: Final = 100
PARENTS: Final = 200_000  # jobs that one job may wait for
ENQUEUE_CHUNK: Final = 500  # jobs of one list that are stored all or none

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_name(value: object, what: str) -> str:
    """A name of a task, queue, tenant, tag …: 1 to 200 bytes without control characters."""
    text = _text(value, what, NAME_BYTES)
    if _CONTROL.search(text):
        raise InvalidCall(f"{what}={text!r} has control characters; a name is printable text")
    return text


def check_names(values: object, what: str) -> tuple[str, ...]:
    """A list of at least one name; a task may be given for its name."""
    if isinstance(values, str):
        raise InvalidCall(f"{what} is a list of names, not one text; write [{values!r}]")
    if not isinstance(values, Iterable):
        raise InvalidCall(f"{what} is a list of names, not {type(values).__name__}")
    names = tuple(check_name(getattr(value, "name", value), f"a name in {what}") for value in values)
    if not names:
        raise InvalidCall(f"{what}=[] would take nothing; leave it out for all {what}")
    return names


def check_routing(value: object) -> Routing:
    """What a receiver takes: ANY, None for only what has no routing key, or one key."""
    return value if value is ANY or value is None else check_name(value, "routing_key")


def check_key(value: object, what: str = "key") -> str:
    """A key: 1 to 512 bytes, without NUL."""
    text = _text(value, what, KEY_BYTES)
    if "\x00" in text:
        raise InvalidCall(f"{what}={text!r} has a NUL character")
    return text


def _text(value: object, what: str, limit: int) -> str:
    if not isinstance(value, str):
        raise InvalidCall(f"{what} must be a text, not {type(value).__name__}")
    if not value:
        raise InvalidCall(f"{what} must not be empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidCall(f"{what}={value!r} has a lone surrogate, which is no character") from None
    if size > limit:
        raise InvalidCall(f"{what} has {size} bytes; at most {limit} are allowed ({value[:40]!r}…)")
    return str(value)
