"""A progress bar on stderr: rich's if it is installed, otherwise plain text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from time import monotonic

import click

Report = Callable[[str, int, int], None]  # what is being done, how many so far, of about how many (0: few)
WIDTH = 30
AT_MOST_EVERY = 0.1  # seconds


@contextmanager
def progress(quiet: bool) -> Iterator[Report]:
    """Yield a function that shows progress: as a bar on a terminal, otherwise as a line per finished part."""
    if quiet:
        yield lambda what, done, size: None
    elif sys.stderr.isatty() and find_spec("rich") is not None:
        with _rich() as report:
            yield report
    else:
        plain = _Plain(bars=sys.stderr.isatty())
        try:
            yield plain
        finally:
            plain.end()


@contextmanager
def _rich() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=False) as bars:
        known: dict[str, object] = {}

        def report(what: str, done: int, size: int) -> None:
            if what not in known:
                known[what] = bars.add_task(what)
            bars.update(known[what], completed=done, total=max(done, size))  # type: ignore[arg-type]

        yield report


class _Plain:
    """Prints one line per part, overwritten while it grows."""

    def __init__(self, *, bars: bool) -> None:
        self._bars = bars
        self._last: tuple[str, int, int] | None = None
        self._drawn_at = 0.0

    def __call__(self, what: str, done: int, size: int) -> None:
        if self._last is not None and self._last[0] != what:
            self._finish()
        self._last = (what, done, size)
        if self._bars and monotonic() - self._drawn_at >= AT_MOST_EVERY:
            self._drawn_at = monotonic()
            click.echo(f"\r{_line(what, done, size)}", nl=False, err=True)

    def end(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._last is not None:
            what, done, size = self._last
            start = "\r" if self._bars else ""
            click.echo(f"{start}{_line(what, done, max(done, size))}", err=True)
            self._last = None


def _line(what: str, done: int, size: int) -> str:
    if not size:
        return f"{what}: {done:,}" if done else what
    filled = WIDTH * min(done, size) // size
    return f"{what} [{'#' * filled}{'.' * (WIDTH - filled)}] {done:,} of {max(done, size):,}"
