"""A pooler in transaction mode, as PgBouncer is one: many clients on a few connections to the server, each lent for one
transaction. Which one a client gets is left to chance, nothing is reset in between, and nobody hears a NOTIFY."""

from __future__ import annotations

import asyncio
import random
import struct

from tests.support.proxy import Switchboard

SSL, GSS, CANCEL = 80877103, 80877104, 80877102


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    size = await reader.readexactly(4)
    return kind, kind + size + await reader.readexactly(struct.unpack("!i", size)[0] - 4)


class _Backend:
    """A connection to the server, after its greeting."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.greeting = b""

    async def greet(self, startup: bytes) -> None:
        self.writer.write(startup)
        while True:
            kind, message = await _message(self.reader)
            if kind == b"E":
                raise ConnectionError(message)
            if kind == b"K":
                continue
            self.greeting += message if kind != b"Z" else b""
            if kind == b"Z":
                return


class Pooler(Switchboard):
    def __init__(self, url: str, size: int = 2) -> None:
        self._size = size
        self._idle: list[_Backend] = []
        self._count = 0
        self._free = asyncio.Condition()
        self.transactions = 0
        self.clients = 0
        super().__init__(url)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = struct.unpack("!i", await reader.readexactly(4))[0]
            body = await reader.readexactly(size - 4)
            code = struct.unpack("!i", body[:4])[0]
            if code in (SSL, GSS):
                writer.write(b"N")
            elif code == CANCEL:
                return
            else:
                break
        self.clients += 1
        startup = struct.pack("!i", size) + body
        backend = await self._take(startup)
        ours = struct.pack("!ciii", b"K", 12, random.randrange(1, 1 << 30), 7)
        writer.write(backend.greeting + ours + b"Z\0\0\0\5I")
        await self._release(backend)
        await _Client(self, startup, reader, writer).talk()

    def hang_up(self) -> None:
        for backend in self._idle:
            backend.writer.transport.abort()

    async def _take(self, startup: bytes) -> _Backend:
        async with self._free:
            await self._free.wait_for(lambda: self._idle or self._count < self._size)
            if self._count < self._size:
                self._count += 1
                try:
                    backend = _Backend(*await asyncio.open_connection(*self.target))
                    await backend.greet(startup)
                except BaseException:
                    self._count -= 1
                    self._free.notify()
                    raise
                return backend
            return self._idle.pop(random.randrange(len(self._idle)))

    async def _release(self, backend: _Backend, *, broken: bool = False) -> None:
        async with self._free:
            if broken:
                backend.writer.transport.abort()
                self._count -= 1
            else:
                self._idle.append(backend)
            self._free.notify()


class _Client:
    """One client: holds a connection to the server from the first word of a transaction to its end."""

    def __init__(
        self, pooler: Pooler, startup: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pooler, self._startup, self._reader, self._writer = pooler, startup, reader, writer
        self._backend: _Backend | None = None
        self._answering: asyncio.Task[None] | None = None
        self._expected = 0  # answers that end with "ready"
        self._unsynced = False
        self._between = asyncio.Event()

    async def talk(self) -> None:
        try:
            while True:
                kind, message = await _message(self._reader)
                if kind == b"X":
                    return
                if self._backend is None:
                    self._backend = await self._pooler._take(self._startup)
                    self._pooler.transactions += 1
                    self._answering = asyncio.ensure_future(self._answer(self._backend))
                self._unsynced = kind not in b"QS"
                self._expected += kind in b"QS"
                self._backend.writer.write(message)
                await self._backend.writer.drain()
        finally:
            if self._answering is not None:
                self._answering.cancel()
            if self._backend is not None:
                await self._pooler._release(self._backend, broken=True)

    async def _answer(self, backend: _Backend) -> None:
        while True:
            try:
                kind, message = await _message(backend.reader)
            except asyncio.IncompleteReadError:
                self._writer.transport.abort()
                return
            if kind == b"Z":
                self._expected -= 1
                if not self._expected and not self._unsynced and message[-1:] == b"I":
                    self._backend = None
                    await self._pooler._release(backend)
                    self._writer.write(message)
                    return
            if kind != b"A":
                self._writer.write(message)
                await self._writer.drain()
