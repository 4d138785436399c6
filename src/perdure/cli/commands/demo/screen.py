"""Print the demo's output: sections, and one line that is overwritten. Without a terminal, plain lines now and then."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from typing import TextIO

WIDTH = 88
QUIET = 2.0  # seconds between lines where nothing can be overwritten


class Screen:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self.terminal = self._out.isatty()
        self._colours = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._utf = (self._out.encoding or "").lower().startswith("utf")
        self._live_length = 0  # of the line to overwrite
        self._live_at = 0.0
        self._sections = 0

    def section(self, title: str, why: str) -> None:
        """Start a chapter: its title, and why it matters."""
        self._sections += 1
        self.line()
        self.line(self._paint("1;36", f"{self._sections}. {title}"))
        for line in textwrap.wrap(why, WIDTH - 3):
            self.line(self._paint("2", f"   {line}"))

    def line(self, text: str = "") -> None:
        self._end_live_line()
        self._write(text + "\n")

    def say(self, text: str) -> None:
        self.line(f"   {text}")

    def fact(self, name: str, value: str) -> None:
        self.line(f"   {name:<22} {self._paint('1', value)}")

    def check(self, held: bool, text: str) -> None:
        mark = ("✓" if self._utf else "ok") if held else ("✗" if self._utf else "FAILED")
        first, *rest = textwrap.wrap(text, WIDTH - 5) or [""]
        self.line(f"   {self._paint('32' if held else '1;31', mark)} {first}")
        for line in rest:
            self.line(f"     {line}")

    def live(self, text: str, *, last: bool = False) -> None:
        """Show progress on the line that showed it before."""
        if self.terminal:
            text = f"   {text}"[: shutil.get_terminal_size().columns - 1]
            self._write("\r" + text.ljust(self._live_length))
            self._live_length = len(text)
        elif last or time.monotonic() - self._live_at >= QUIET:
            self._write(f"   {text}\n")
            self._live_at = time.monotonic()
        if last:
            self._end_live_line()
            self._live_at = 0.0

    def bar(self, part: int, whole: int, width: int = 24) -> str:
        filled = width if whole == 0 else min(width, width * part // whole)
        full, empty = ("█", "░") if self._utf else ("#", ".")
        return full * filled + empty * (width - filled)

    def _end_live_line(self) -> None:
        if self._live_length:
            self._write("\n")
            self._live_length = 0

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text

    def _write(self, text: str) -> None:
        self._out.write(text if self._utf else text.encode("ascii", "replace").decode())
        self._out.flush()
