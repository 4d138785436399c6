"""Short forms for tests of the Redis store: stores, raw clients, and a proxy that can break connections."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import redis as driver

from perdure.core.ids import new_stamp
from perdure.storage.contract import Claim, Want
from perdure.storage.redis.keys import Keys
from perdure.storage.urls import opener, parse
from perdure.testing.conformance.tools import job


@asynccontextmanager
async def opened(url, **options):
    """An open store."""
    store = opener(url, **{"durability": "relaxed", **options})()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def client(url):
    """The server, without Perdure."""
    return driver.Redis.from_url(url.partition("?")[0])


def keys(url):
    return Keys(parse(url).server.prefix)


def jobs(count, **fields):
    return [job(**fields) for _ in range(count)]


def claim(limit=1, worker="w1", **want):
    return Claim(worker, new_stamp(), (Want(limit, **want),))


CERTIFICATE = Path(__file__).with_name("certificate.pem")  # for 127.0.0.1, signed by itself, with its key


class Proxy:
    """A way to the server that can be cut, or made to swallow what the server answers."""

    def __init__(self, port, tls=None):
        self._port = port
        self._tls = tls
        self._server = None
        self._writers = set()
        self._tasks = set()
        self.swallows = False
        self._muted = set()
        self.silent = False
        self.kept = 0  # parts that were not passed on

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self):
        return self._server.sockets[0].getsockname()[1]

    def url(self, url):
        """The same store by way of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0?{url.partition('/0?')[2]}"

    def cut(self):
        for writer in list(self._writers):
            writer.transport.abort()

    def mute(self):
        """Let the connections of now look alive and pass nothing on."""
        self._muted |= self._writers

    async def _serve(self, reader, writer):
        there, onward = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, onward}
        ways = [self._pass(reader, onward, False), self._pass(there, writer, True)]
        for way in ways:
            task = asyncio.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader, writer, answers):
        with suppress(ConnectionError, asyncio.CancelledError):
            while part := await reader.read(65536):
                if answers and self.swallows:
                    self.cut()
                    break
                if self.silent or writer in self._muted:
                    self.kept += 1
                    continue
                writer.write(part)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()
