"""Short forms for tests of transactions."""

import asyncio
from contextlib import contextmanager


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


async def until(condition, seconds=10.0):
    """Wait for a condition that another task or process brings about."""
    async with asyncio.timeout(seconds):
        while not (found := await condition()):
            await asyncio.sleep(0.01)
    return found


def schema_of(app):
    return app._places.url.rpartition("schema=")[2]
