"""Shortens what faulthandler writes when a process crashes: of each thread only the frames of the user's code are shown.

A worker has a dozen threads, and each of them has a dozen frames of asyncio, threading and Perdure. What a user looks for
is one line of their own code.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec

FRAMES = 8  # of each thread, the innermost
_CRASHES = ("Fatal Python error:", "Timeout (")
_THREADS = ("Current thread 0x", "Thread 0x")
_FRAME = re.compile(r'  File "(.*)", line \d+ in ')

# folders of code that is not the user's: Perdure, what starts it, and the standard library
_MACHINERY = tuple(
    folder + os.sep
    for package in (__name__.partition(".")[0], "click")
    if (spec := find_spec(package)) is not None
    for folder in spec.submodule_search_locations or ()
)
_LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


def opens_dump(line: str) -> bool:
    """Whether a dump begins with this line, or goes on with another thread."""
    return line.startswith((*_CRASHES, *_THREADS))


def belongs_to_dump(line: str) -> bool:
    return opens_dump(line) or line.startswith(("  File ", "  <", "  ...", "Extension modules: "))


def shorten(dump: Iterable[str]) -> list[str]:
    """How the process crashed, and the threads that were in the user's code, innermost frame first. If no thread was, the
    first one: that is where it crashed."""
    heads: list[str] = []
    threads: list[list[str]] = []
    for line in dump:
        if line.startswith(_THREADS):
            threads.append([line])
        elif _FRAME.match(line) and threads:
            threads[-1].append(line)
        elif line.startswith(_CRASHES):
            heads.append(line)
    shown = [[head, *frames[:FRAMES]] for head, *all_frames in threads if (frames := _down_to_user(all_frames))]
    shown = shown or [thread[: FRAMES + 1] for thread in threads[:1]]
    return [*heads, *(line for thread in shown for line in thread)]


def _down_to_user(frames: list[str]) -> list[str]:
    """The frames without those that called the user's code. Empty: there is none of the user's."""
    last = max((number for number, frame in enumerate(frames) if _is_users(frame)), default=-1)
    return frames[: last + 1]


def _is_users(frame: str) -> bool:
    found = _FRAME.match(frame)
    path = "" if found is None else found[1]
    if not path or path.startswith(("<frozen ", "<string>", *_MACHINERY)):
        return False
    return "site-packages" in path or not path.startswith(_LIBRARY)


class DumpFilter:
    """Passes on the stderr of a process, with each crash dump shortened.

    A dump that the process wrote for another reason, because its user asked for it, is passed on as it is."""

    def __init__(self) -> None:
        self.expects_dump = False  # the supervisor asked for one
        self._partial = b""  # a line without its end
        self._passed = False  # the beginning of this line was passed on
        self._dump: list[str] = []

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on now."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        passed = b"".join(self._line(line) for line in lines)
        if self._partial and not self._dump and not _may_open(self._partial):
            passed, self._partial, self._passed = passed + self._partial, b"", True
        return passed

    def end(self) -> bytes:
        """The last bytes, when the process has ended."""
        partial, self._partial = self._partial, b""
        return (self._line(partial).removesuffix(b"\n") if partial else b"") + self._shorten_dump()

    def _line(self, line: bytes) -> bytes:
        if self._passed:
            self._passed = False
            return line + b"\n"
        text = line.decode("utf-8", "backslashreplace")
        inside = bool(self._dump)
        if (inside and (not text or belongs_to_dump(text))) or self._opens(text):
            self._dump.append(text)
            return b""
        return self._shorten_dump() + line + b"\n"

    def _opens(self, text: str) -> bool:
        return text.startswith(_CRASHES[0]) or (self.expects_dump and opens_dump(text))

    def _shorten_dump(self) -> bytes:
        dump, self._dump = self._dump, []
        return "".join(f"{line}\n" for line in shorten(dump)).encode("utf-8", "replace")


def _may_open(partial: bytes) -> bool:
    """Whether a line may turn out to open a dump."""
    text = partial.decode("utf-8", "replace")
    return any(word.startswith(text[: len(word)]) for word in (*_CRASHES, *_THREADS))
