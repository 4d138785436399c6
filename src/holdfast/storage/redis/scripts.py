"""The store's scripts: one `.lua` file per verb, behind what all share.

Numbers with a name of their own in capitals (`local READY = 3`, at the beginning of a line) are written into the text where
they are used: a script may have 200 local names, and every one of them costs each call a moment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

SHARED = ("prelude", "places")
PARTS = {
    "enqueue": ("gates", "settling", "placing"),
    "exchange": ("gates", "settling", "placing", "apply", "promote_due", "lanes", "admitting"),
    "promote": ("gates", "promote_due"),
    "settle": ("gates", "settling"),
    "shelf": ("shelving",),
    "shelve": ("gates", "settling", "placing", "shelving"),
    "restore_shelf": ("shelving",),
    "restore": ("gates", "settling"),
    "prune": ("gates", "settling", "shelving"),
    "audit": ("gates",),
}  # what a verb needs beside that, in this order


_NUMBERS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = (-?\d+(?:, -?\d+)*)(?= --|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A verb as the server runs it."""

    name: str
    text: str
    digest: str  # what the server calls it once it has seen it


@cache
def script(name: str) -> Script:
    """The script of a verb."""
    folder = files(__package__) / "lua"
    names = (*SHARED, *PARTS.get(name, ()), name)
    text = _with_numbers("\n".join((folder / f"{part}.lua").read_text("utf-8") for part in names))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _with_numbers(text: str) -> str:
    numbers: dict[str, str] = {}
    for names, values in _NUMBERS.findall(text):
        numbers |= dict(zip(names.split(", "), values.split(", "), strict=True))
    named = re.compile(rf"('[^'\n]*'|--[^\n]*)|\b({'|'.join(numbers)})\b")
    return named.sub(lambda found: found[1] or numbers[found[2]], _NUMBERS.sub("", text))
