"""The interpreter of a process that is the worker's own, as those of `perdure worker` are."""

import gc
import sys

PROMPT = 0.0002  # seconds
YOUNG = 5_000  # objects


def make_prompt() -> None:
    """To be called when everything is imported.

    Threads take turns soon. SQLite works in a thread beside the handlers: with Python's 5 ms it would wait longer for the
    interpreter, between two statements, than it works. And what is loaded by now stays as long as the process does: the
    collector of garbage need not go through it again and again. It looks less often, too: a worker holds a thousand jobs
    for some milliseconds, and with Python's 700 objects they would all be gone through several times in that while."""
    sys.setswitchinterval(PROMPT)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
