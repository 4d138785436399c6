"""The interpreter of a process that is the worker's own, as those of `holdfast worker` are."""

import sys

PROMPT = 0.0002  # seconds


def make_prompt() -> None:
    """Let threads take turns soon. SQLite works in a thread beside the handlers: with Python's 5 ms it would wait longer
    for the interpreter, between two statements, than it works."""
    sys.setswitchinterval(PROMPT)
