"""Short forms for the tests of the MongoDB store."""

from contextlib import asynccontextmanager
from itertools import count

from perdure.core.ids import new_stamp
from perdure.storage.contract import Claim, Want
from perdure.storage.urls import opener, parse
from perdure.testing.conformance.tools import job
from tests.support.real_servers import server

__all__ = ["claim", "database_of", "fresh", "held", "job", "store_at"]
_numbers = count()


def fresh():
    """The URL of a database that nobody used before, on the server of the run."""
    return server("mongo").fresh()


@asynccontextmanager
async def store_at(url=None, **options):
    store = opener(url or fresh(), **options)()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def claim(limit=1, worker="w1", stamp=None, **want):
    return Claim(worker, stamp or new_stamp(), (Want(limit, **want),))


async def held(store, **fields):
    """A job that has just been enqueued and claimed."""
    await store.enqueue([job(**fields)])
    return (await store.claim(claim()))[0]


def database_of(client, url):
    """The database that a URL names, seen through a client of one's own."""
    return client[parse(url).server.database]
