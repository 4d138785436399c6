"""Detects that this process has no file descriptor left to open a connection or a file.

Drivers report that in many ways: as an `OSError`, inside a text, or as a file that cannot be opened.
"""

from __future__ import annotations

import errno
import os

EXHAUSTED = (
    "this process has no file descriptor left, so it can open no connection and no file: close what it has open, or raise "
    "the limit (`ulimit -n`)"
)
_NUMBERS = (errno.EMFILE, errno.ENFILE)


def are_exhausted(error: BaseException) -> bool:
    """Whether an error came of that."""
    if getattr(error, "errno", None) in _NUMBERS or "Too many open files" in str(error):
        return True
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as refused:
        return refused.errno in _NUMBERS
    return False
