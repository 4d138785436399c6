"""Handlers that run in processes which the worker forks: what they have to tell goes through a pipe to the probe.

A handler writes its job's text into the pipe, which is one system call and whole whatever its neighbours write; a thread of
the worker's process reads and calls the probe. The pipe is made before the first fork, so every child has it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from benchmarks.payload import SIZE
from benchmarks.probe import Probe

AT_A_TIME = 1_000


@contextmanager
def told_by_children(probe: Probe) -> Iterator[Callable[[str], None]]:
    """A function for handlers in forked children that calls the probe here."""
    reading, writing = os.pipe()
    parent = os.getpid()
    listener = Thread(target=_listen, args=(reading, probe), daemon=True)
    listener.start()
    try:
        yield lambda text: _tell(writing, text)
    finally:
        if os.getpid() == parent:
            # An empty mark ends it: children that linger hold the pipe open, so there may be no end of file.
            os.write(writing, b"\0" * SIZE)
            listener.join()
            os.close(writing)
            os.close(reading)


def _tell(pipe: int, text: str) -> None:
    os.write(pipe, text.encode())


def _listen(pipe: int, probe: Probe) -> None:
    rest = b""
    while True:
        rest += os.read(pipe, SIZE * AT_A_TIME)
        whole = len(rest) // SIZE * SIZE
        for start in range(0, whole, SIZE):
            text = rest[start : start + SIZE]
            if text[0] == 0:
                return
            probe(text.decode())
        rest = rest[whole:]
