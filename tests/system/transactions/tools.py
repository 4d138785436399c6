"""Short forms for tests of transactions."""

import subprocess
import sys
from contextlib import contextmanager

# how a story of Django begins, in a process of its own: its settings are made once
_DJANGO = """
import asyncio, sys, threading, time
import django
from django.conf import settings

url, databases = sys.argv[1], eval(sys.argv[2])
settings.configure(DEBUG=True, DATABASES=databases, USE_TZ=True)
django.setup()
from django.db import DatabaseError, connection, connections, transaction
from perdure import Perdure, InvalidCall, StoreError, Unique
from perdure.sync import run

app = Perdure(url)

@app.task
async def task(a: int): ...

assert app.jobs.sync.count() == 0
told = []

async def listen():
    store = await app._runtime.storage()
    signal = store.signal

    async def noted(queues):
        told.extend(queues)
        await signal(queues)

    store.signal = noted

run(listen)

def expect(what):
    until = time.monotonic() + 5
    while told != what and time.monotonic() < until:
        time.sleep(0.01)
    assert told == what, told

def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
"""


def tell_django(story, url, databases):
    """Run a story in a project of Django's with these databases; it must come to its end."""
    command = [sys.executable, "-c", f"{_DJANGO}\n{story}\nprint('fine')", url, repr(databases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


@contextmanager
def signals(storage):
    """The queues that are signalled by hand."""
    told = []
    signal = storage.signal

    async def noted(queues):
        told.extend(queues)
        await signal(queues)

    storage.signal = noted
    try:
        yield told
    finally:
        storage.signal = signal


def schema_of(app):
    return app._runtime.loops.url.rpartition("schema=")[2]
