"""The store's scripts: one `.lua` file per verb, behind the prelude that all share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

PARTS = {
    "exchange": ("apply", "promote_due", "lanes"),
    "promote": ("promote_due",),
}  # what a verb needs beside the prelude


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
    names = ("prelude", *PARTS.get(name, ()), name)
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in names)
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
