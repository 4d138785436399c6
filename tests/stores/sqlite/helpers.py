"""Stores, jobs and other processes for the tests of the SQLite store."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager

from perdure.core.ids import new_id, new_stamp
from perdure.core.record import NewJob
from perdure.storage.contract import Claim, Want
from perdure.storage.urls import opener


def job(**fields):
    plain = {"task": "t", "payload": "{}", "backoff": '["fixed",1000000,1.0,1000000,0]'}
    return NewJob(**{"id": new_id(), "retention": "{}", "dead_retention": "{}", **plain, **fields})


def after(*parents, **fields):
    """A job that waits for these."""
    return job(after=json.dumps([parent.id for parent in parents]), waits=len(parents), **fields)


def claim(limit=10, worker="w", **wanted):
    return Claim(worker, new_stamp(), (Want(limit, **wanted),))


@asynccontextmanager
async def store_at(path, *, scheme="sqlite", query="", **options):
    store = opener(f"{scheme}:///{path}{query}", **options)()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


PRELUDE = """
import asyncio, os, signal, sqlite3, sys, threading, time
from tests.stores.sqlite.helpers import after, claim, job, store_at
from perdure.core.lifecycle import Succeeded, decide
path = sys.argv[1]
def say(*words):
    print(*words, flush=True)
"""


def process(path, code, *arguments):
    """Another Python that runs `code` with `path` at hand."""
    script = PRELUDE + textwrap.dedent(code)
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(other, timeout=60):
    """What the other process said, once it has ended well."""
    said, _ = other.communicate(timeout=timeout)
    assert other.returncode == 0, said
    return said


async def line(other):
    """The next line of another process."""
    return (await asyncio.to_thread(other.stdout.readline)).strip()
