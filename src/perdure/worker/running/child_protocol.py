"""The messages between a worker and its child processes: JSON texts behind their length, over a socket. Nothing is pickled.

    worker → child    begin (app, modules) · run (a job; number: when it started) · lost (reason) · answer (number)
    child → worker    ready · failed (why) · progress, log, texts, keep, now, undo (number) · end (kind, JSON) · stopped

A message with a number gets an `answer` with the same number: with a reason when the hold is gone, with UNAVAILABLE and the
place of the store when that is in trouble, else with `data`. A `run` has the place of the worker's store as its kind.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.lifecycle import Continued, Died, Failed, HandedBack, Report, Skipped, Snoozed, Succeeded

_REPORTS: dict[str, Any] = {
    kind.__name__: kind for kind in (Succeeded, Continued, Failed, Snoozed, Skipped, Died, HandedBack)
}
UNAVAILABLE = "store unavailable"
LENGTH = 4
LONGEST = 64 << 20


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message."""

    type: str
    number: int = 0
    kind: str = ""
    text: str = ""
    data: str = ""


ANSWERED = ("progress", "log", "texts", "keep", "now", "undo")  # messages of a child that the worker answers


class Begin(msgspec.Struct, frozen=True):
    """What a child needs to know first: where the app is, and which modules define its tasks."""

    module: str | None  # importable, or
    file: str | None  # a script, which is loaded as a module
    attribute: str
    modules: tuple[str, ...]


_decoder = msgspec.json.Decoder(Message)


def pack(message: Message) -> bytes:
    data = msgspec.json.encode(message)
    return len(data).to_bytes(LENGTH, "big") + data


def unpack(data: bytes) -> Message:
    return _decoder.decode(data)


def end_message(report: Report) -> Message:
    """The message that reports the end of a handler."""
    return Message("end", kind=type(report).__name__, text=msgspec.json.encode(report).decode())


def report_in(message: Message) -> Report:
    report: Report = msgspec.json.decode(message.text, type=_REPORTS[message.kind])
    return report
