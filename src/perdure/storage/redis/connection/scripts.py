"""Assembles the scripts: one `.lua` file per verb, behind the parts that it shares with others, and fast paths before these.

What has a name of its own but never changes is written into the text where it is used: numbers and texts with a name in
capitals (`local READY = 3`), the keys (`local jobs = KEYS[1]`) and the server's `call`. A script may have 200 local names,
and whenever it runs, every function in it is made anew with all the names that it uses: in a short call that is most of the
work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from perdure.storage.rules import fast_path

_PLACING = ("parents", "fair_ranks", "put_jobs")
BASICS = ("constants", "heads")
FIRST = {
    "enqueue": ("fast_enqueue",),
    "exchange": ("fast_success", "fast_claim", "fast_exchange"),
}  # fast paths: they answer, or leave everything as it was to the general path below
SHARED = ("prelude", "indexes")
PARTS = {
    "enqueue": ("limit_gates", "edges", *_PLACING),
    "exchange": ("limit_gates", "edges", *_PLACING, "apply", "promote_due", "claim_lanes", "limit_claim"),
    "promote": ("limit_gates", "promote_due"),
    "resolve_edges": ("limit_gates", "edges"),
    "kv_read": ("kv",),
    "kv_write": ("limit_gates", "edges", *_PLACING, "kv"),
    "restore_kv": ("kv",),
    "restore": ("limit_gates", "edges"),
    "prune": ("limit_gates", "edges", "kv"),
    "audit": ("limit_gates",),
    "audit_kv": ("kv",),
    "configure": ("limit_gates",),
    "schema_version": ("limit_gates",),
    "set_aside": ("limit_gates", "edges"),
}  # what a verb needs beside that, in this order


_NUMBER, _TEXT, _NAMES = r"-?\d+", r"'[^'\n]*'", r"[A-Z_]+(?:, [A-Z_]+)*"
_CONSTANTS = re.compile(
    rf"^( *)local (?:({_NAMES}) = ((?:{_NUMBER}|{_TEXT})(?:, (?:{_NUMBER}|{_TEXT}))*)"
    r"|([a-z_, ]+) = (KEYS\[\d+\](?:, KEYS\[\d+\])*|redis\.call))(?: *--.*)?$\n",
    re.MULTILINE,
)
_VALUES = re.compile(rf"{_NUMBER}|{_TEXT}|KEYS\[\d+\]|redis\.call")
# whole words, but for those in texts and comments, and names of fields
_WORDS = re.compile(r"'[^'\n]*'|--[^\n]*|(?<![.\w])[A-Za-z_]+\b(?! =[^=])")


@dataclass(frozen=True, slots=True)
class Script:
    """The text of a verb, and its digest."""

    name: str
    text: str
    digest: str  # what the server calls it once it has seen it


# read when this module is imported: a program that is upgraded, or that has no file descriptor left, goes on with them
_TEXTS = {
    file.name.removesuffix(".lua"): file.read_text("utf-8")
    for file in (files("perdure.storage.redis") / "lua").iterdir()
    if file.name.endswith(".lua")
}


def script(name: str) -> Script:
    """The script of a verb."""
    return _assemble(name, fast_path.enabled())


@cache
def _assemble(name: str, fast: bool) -> Script:
    names = (*BASICS, *(FIRST.get(name, ()) if fast else ()), *SHARED, *PARTS.get(name, ()), name)
    text = _write_constants([_TEXTS[part] for part in names])
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _write_constants(parts: Iterable[str]) -> str:
    """Replace named constants by their values. One at the beginning of a line holds for all parts that follow, an indented
    one for its own part."""
    shared: dict[str, str] = {}
    written = []
    for text in parts:
        own: dict[str, str] = {}
        for indent, *found in _CONSTANTS.findall(text):
            names, values = "".join(found[::2]).split(", "), _VALUES.findall("".join(found[1::2]))
            (own if indent else shared).update(zip(names, values, strict=True))
        written.append(_replace_words(_CONSTANTS.sub("", text), shared | own))
    return "\n".join(written)


def _replace_words(text: str, constants: Mapping[str, str]) -> str:
    return _WORDS.sub(lambda found: constants.get(found[0], found[0]), text)
