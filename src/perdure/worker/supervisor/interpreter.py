"""The interpreter of a process that is the worker's own, as those of `perdure worker` are."""

import gc

YOUNG = 5_000  # objects


def tune_collector() -> None:
    """Let the garbage collector look less often. Call it when everything is imported.

    What is loaded by now stays as long as the process does, so the collector need not go through it again and again. A
    worker holds a thousand jobs for some milliseconds, and with Python's 700 objects the collector would go through all of
    them several times in that while.

    The switch interval stays Python's 5 ms: a shorter one gains nothing in a drain, and a `def` handler that computes
    takes longer, because the loop and the other threads interrupt it more often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
