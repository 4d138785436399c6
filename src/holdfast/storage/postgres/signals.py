"""Wake-ups: to listeners of this loop directly, to other processes by NOTIFY and from them by LISTEN.

A NOTIFY is sent after the commit, by a statement of its own: inside a transaction it would make commits wait for each
other. Those that come within a moment are one. The ear is a connection of its own; when it breaks it is opened again, for
ever, and everybody is woken once it is, because something may have been missed. Behind a pooler nobody can listen: then
polling alone finds the jobs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import blake2b

import msgspec
import psycopg
from psycopg import sql

from holdfast.errors import StoreError
from holdfast.storage.contract import Topic

from .server import Connection, Server

GATHER = {"ready": 0.0005, "changed": 0.02}  # seconds in which wake-ups are gathered into one
LONGEST = 7000  # bytes of a NOTIFY's text; PostgreSQL takes 8000
CHECK_EVERY = 30.0  # seconds after which a silent ear is asked whether it still hears
_log = logging.getLogger("holdfast")


class Told(msgspec.Struct, array_like=True):
    """What a NOTIFY says: who sent it, the queues with ready jobs (None: too many to name), whether some job changed."""

    sender: str
    ready: list[str] | None
    changed: bool


class _Listener:
    def __init__(self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None) -> None:
        self.topic = topic
        self.wake = wake
        self._queues = queues

    def concerned(self, ready: Collection[str] | None, changed: bool) -> bool:
        if self.topic == "changed":
            return changed
        if ready is None:
            return True
        return bool(ready) if self._queues is None else not self._queues.isdisjoint(ready)


class Signals:
    """One loop's share: who listens here, what is to be told elsewhere, and the ear."""

    def __init__(self, server: Server, sender: str) -> None:
        self._server = server
        self._sender = sender
        self._channel = channel_of(server.address.schema)
        self._listeners: list[_Listener] = []
        self._ready: set[str] = set()
        self._changed = False
        self._due: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False

    # -- telling -------------------------------------------------------------------------------------
    def tell(self, ready: Collection[str], changed: bool) -> None:
        """Something was committed here."""
        if self._closed or not (ready or changed):
            return
        self._tell_here(ready, changed)
        self._ready |= set(ready)
        self._changed |= changed
        self._plan(GATHER["ready"] if ready else GATHER["changed"])

    def _plan(self, delay: float) -> None:
        loop = asyncio.get_running_loop()
        if self._due is not None:
            if self._due.when() <= loop.time() + delay:
                return
            self._due.cancel()
        self._due = loop.call_later(delay, self._send)

    def _send(self) -> None:
        self._due = None
        if self._sending is not None and not self._sending.done():
            self._again = True
            return
        self._sending = asyncio.get_running_loop().create_task(self._notify(), name="holdfast signal")

    async def _notify(self) -> None:
        ready, changed = self._ready, self._changed
        self._ready, self._changed = set(), False
        text = msgspec.json.encode(Told(self._sender, sorted(ready), changed)).decode()
        if len(text.encode()) > LONGEST:
            text = msgspec.json.encode(Told(self._sender, None, changed)).decode()
        try:
            await self._server.quickly(
                lambda connection: connection.execute("SELECT pg_notify(%s, %s)", (self._channel, text))
            )
        except StoreError:
            _log.debug("a signal was not sent", exc_info=True)
        if self._again and not self._closed:
            self._again = False
            self._plan(0.0)

    async def flush(self) -> None:
        """Send what is to be sent, now."""
        if self._due is not None:
            self._due.cancel()
            self._send()
        if self._sending is not None:
            with suppress(asyncio.CancelledError):
                await self._sending

    # -- listening -----------------------------------------------------------------------------------
    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        listener = _Listener(topic, wake, queues)
        self._listeners.append(listener)
        if self._ear is None and not self._server.pooled and not self._closed:
            self._ear = asyncio.get_running_loop().create_task(self._hear(), name="holdfast ear")
        return lambda: self._stop(listener)

    def _stop(self, listener: _Listener) -> None:
        with suppress(ValueError):
            self._listeners.remove(listener)

    def _tell_here(self, ready: Collection[str] | None, changed: bool) -> None:
        for listener in list(self._listeners):
            if listener.concerned(ready, changed):
                listener.wake()

    async def _hear(self) -> None:
        pause = 0.1
        while not self._closed:
            try:
                async with await self._server.connect() as connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    self._tell_here(None, True)
                    pause = 0.1
                    await self._attend(connection)
            except (psycopg.Error, OSError, TimeoutError, StoreError) as error:
                _log.debug("the ear on %s is deaf, it is opened again: %s", self._server.address, error)
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(5.0, 2 * pause)

    async def _attend(self, connection: Connection) -> None:
        while not self._closed:
            async for heard in connection.notifies(timeout=CHECK_EVERY):
                self._heard(heard.payload)
            await asyncio.wait_for(connection.execute("SELECT 1"), CHECK_EVERY)

    def _heard(self, text: str) -> None:
        try:
            told = msgspec.json.decode(text, type=Told)
        except msgspec.MsgspecError:
            self._tell_here(None, True)  # somebody's own NOTIFY on our channel: a wake-up for all
            return
        if told.sender != self._sender:
            self._tell_here(told.ready, told.changed)

    # -- the end -------------------------------------------------------------------------------------
    async def close(self) -> None:
        with suppress(StoreError):
            await self.flush()
        self._closed = True
        if self._ear is not None:
            self._ear.cancel()
            with suppress(asyncio.CancelledError):
                await self._ear
            self._ear = None
        self._listeners.clear()


def channel_of(schema: str) -> str:
    """The channel of a store. Names of channels hold 63 bytes, and several stores can share a database."""
    name = f"holdfast_{schema}"
    return name if len(name) < 60 else f"holdfast_{blake2b(schema.encode(), digest_size=16).hexdigest()}"
