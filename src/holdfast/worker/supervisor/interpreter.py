"""The interpreter of a process that is the worker's own, as those of `holdfast worker` are."""

import gc
import sys

PROMPT = 0.0002  # seconds


def make_prompt() -> None:
    """To be called when everything is imported.

    Threads take turns soon. SQLite works in a thread beside the handlers: with Python's 5 ms it would wait longer for the
    interpreter, between two statements, than it works. And what is loaded by now stays as long as the process does: the
    collector of garbage need not go through it again and again."""
    sys.setswitchinterval(PROMPT)
    gc.collect()
    gc.freeze()
