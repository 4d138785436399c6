"""What a worker and its child processes say to each other: JSON texts behind their length, over a socket. Data only: no
object of the user's is ever pickled.

    worker → child    begin (app, modules) · run (a job; number: when it started) · lost (reason) · heard (number)
    child → worker    ready · failed (why) · progress, log, texts, keep, now, undo (number) · end (kind, JSON) · stopped

What has a number is answered by `heard` with the same number: with a reason when the hold is gone, with UNAVAILABLE and the
place when the store is in trouble, else with `data`. A `run` carries the place of the worker's store as its kind.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.lifecycle import Continued, Died, Failed, HandedBack, Report, Skipped, Snoozed, Succeeded

_SAID: dict[str, Any] = {
    kind.__name__: kind for kind in (Succeeded, Continued, Failed, Snoozed, Skipped, Died, HandedBack)
}
UNAVAILABLE = "store unavailable"
LENGTH = 4
LONGEST = 64 << 20


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One word, with what belongs to it."""

    word: str
    number: int = 0
    kind: str = ""
    text: str = ""
    data: str = ""


ASKED = ("progress", "log", "texts", "keep", "now", "undo")  # what a child says that is answered


class Begin(msgspec.Struct, frozen=True):
    """What a child needs to know first: where the app is, and which modules define its tasks."""

    module: str | None  # importable, or
    file: str | None  # a script, which is loaded as a module
    attribute: str
    modules: tuple[str, ...]


_decoder = msgspec.json.Decoder(Message)


def packed(message: Message) -> bytes:
    data = msgspec.json.encode(message)
    return len(data).to_bytes(LENGTH, "big") + data


def unpacked(data: bytes) -> Message:
    return _decoder.decode(data)


def end_of(said: Report) -> Message:
    """How a child tells the end of a handler."""
    return Message("end", kind=type(said).__name__, text=msgspec.json.encode(said).decode())


def said_in(message: Message) -> Report:
    said: Report = msgspec.json.decode(message.text, type=_SAID[message.kind])
    return said
