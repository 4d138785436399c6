"""Sends and receives wake-ups: to listeners of this loop directly, to other processes by NOTIFY, from them by LISTEN.

A NOTIFY is sent after the commit, by a statement of its own: inside a transaction it would make commits wait for each other.
The first is sent at once. Signals that come while it is under way, or within a moment after it, are sent together. The
listener has a connection of its own. When that breaks it is opened again, for ever, and then everybody is woken once,
because signals may have been lost. Behind a pooler nobody can listen; polling alone finds the jobs. Both directions can be
switched off (`?signals=off`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import LiteralString

import msgspec
import psycopg

from perdure.errors import StoreError
from perdure.storage.contract import Topic
from perdure.storage.wakeups import Listener, Listeners

from ..queries import load
from .pool import hang_up
from .server import Connection, Server

REST = {"ready": 0.005, "changed": 0.02}  # seconds between two NOTIFYs, for what is told meanwhile
LONGEST = 7000  # bytes of a NOTIFY's text; PostgreSQL takes 8000
CHECK_EVERY = 15.0  # seconds after which a silent ear is asked whether it still hears
ANSWER_WITHIN = 5.0
_log = logging.getLogger("perdure")


class SignalText(msgspec.Struct, array_like=True):
    """What a NOTIFY says: who sent it, the queues with ready jobs (None: too many to name), whether some job changed."""

    sender: str
    ready: list[str] | None
    changed: bool


class Signals:
    """One loop's share: who listens here, what is to be told elsewhere, and the ear."""

    def __init__(self, server: Server, sender: str) -> None:
        self._server = server
        self._sender = sender
        self._sql = load("signals", server.address.schema, channel=channel_of(server.address.schema))
        self._listeners = Listeners()
        self._ready: set[str] = set()
        self._changed = False
        self._last = 0.0  # when a NOTIFY was sent last
        self._due: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None
        self._line: Connection | None = None
        self._closed = False

    # -- telling -------------------------------------------------------------------------------------
    def tell(self, ready: Collection[str], changed: bool) -> None:
        """Something was committed here."""
        if self._closed or not (ready or changed):
            return
        self._listeners.notify(ready, changed)
        if self._server.address.signals:
            self._ready.update(ready)
            self._changed |= changed
            self._plan(REST["ready"] if ready else REST["changed"])

    def _plan(self, rest: float) -> None:
        if self._sending is not None:
            return  # planned when it is sent
        at = self._last + rest
        loop = asyncio.get_running_loop()
        if at <= loop.time():
            self._send()
        elif self._due is None or self._due.when() > at:
            self._cancel_due()
            self._due = loop.call_at(at, self._send)

    def _cancel_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _send(self) -> None:
        self._cancel_due()
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        ready, changed = sorted(self._ready), self._changed
        self._ready.clear()
        self._changed = False
        self._sending = loop.create_task(self._notify(ready, changed), name="perdure signal")
        self._sending.add_done_callback(self._sent)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending = None
        if not self._closed and not sending.cancelled() and (self._ready or self._changed):
            self._plan(REST["ready"] if self._ready else REST["changed"])

    async def _notify(self, ready: list[str], changed: bool) -> None:
        notify, values = self._sql["notify"], {"text": _text(SignalText(self._sender, ready, changed))}
        try:
            await self._server.run_indexed(lambda connection: connection.execute(notify, values))
        except StoreError:
            _log.debug("a signal was not sent", exc_info=True)

    async def flush(self) -> None:
        """Send what is to be sent, now."""
        while self._ready or self._changed or self._sending is not None:
            if self._sending is None:
                self._send()
            assert self._sending is not None
            await asyncio.wait([self._sending])

    # -- listening -----------------------------------------------------------------------------------
    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        listener = Listener(topic, wake, queues)
        self._listeners.add(listener)
        if self._ear is None and self._hears() and not self._closed:
            self._ear = asyncio.get_running_loop().create_task(self._hear(), name="perdure ear")
        return listener.stop

    def _hears(self) -> bool:
        return self._server.address.signals and not self._server.pooled

    async def _hear(self) -> None:
        pause = 0.1
        while not self._closed:
            try:
                self._line = await self._server.connect()
                try:
                    await _answered(self._line, self._sql["listen"])
                    self._listeners.notify(None, True)
                    pause = 0.1
                    await self._attend(self._line)
                finally:
                    await self._line.close()
            except (psycopg.Error, OSError, StoreError) as error:
                _log.debug("the ear on %s is deaf, it is opened again: %s", self._server.address, error)
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(5.0, 2 * pause)

    async def _attend(self, connection: Connection) -> None:
        """Hear, until the connection breaks. One that may have broken without a word is asked now and then."""
        connection.add_notify_handler(lambda heard: self._heard(heard.payload))  # what comes with an answer
        while not self._closed:
            for text in _heard_by(connection):
                self._heard(text)
            if not await _readable(connection, CHECK_EVERY):
                await _answered(connection, self._sql["ask"])

    def _heard(self, text: str) -> None:
        try:
            signal = msgspec.json.decode(text, type=SignalText)
        except msgspec.MsgspecError:
            self._listeners.notify(None, True)  # somebody's own NOTIFY on our channel: a wake-up for all
            return
        if signal.sender != self._sender:
            self._listeners.notify(signal.ready, signal.changed)

    def hang_up(self) -> None:
        """End the connection that listens; another is opened."""
        if self._line is not None:
            hang_up(self._line)

    # -- the end -------------------------------------------------------------------------------------
    async def close(self) -> None:
        self._cancel_due()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self.flush()
        self._closed = True
        if self._ear is not None:
            self.hang_up()  # whatever it waits for
            self._ear.cancel()
            with suppress(asyncio.CancelledError):
                await self._ear
            self._ear = None
        self._listeners.clear()


async def _answered(connection: Connection, statement: LiteralString) -> None:
    """Run a statement, but do not wait for ever: a line that swallows every word is as good as cut."""
    late = asyncio.get_running_loop().call_later(ANSWER_WITHIN, hang_up, connection)
    try:
        await connection.execute(statement, prepare=False)
    finally:
        late.cancel()


async def _readable(connection: Connection, within: float) -> bool:
    """Wait until something comes; False when nothing did. The driver's own way looks ten times a second."""
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[None] = loop.create_future()
    line = connection.fileno()
    loop.add_reader(line, _came, coming)
    try:
        async with asyncio.timeout(within):
            await coming
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(line)
    return True


def _came(coming: asyncio.Future[None]) -> None:
    if not coming.done():
        coming.set_result(None)


def _heard_by(connection: Connection) -> Iterator[str]:
    """The texts that have come, without waiting. A line that has broken is an error here."""
    connection.pgconn.consume_input()
    while (heard := connection.pgconn.notifies()) is not None:
        yield heard.extra.decode("utf-8", "replace")


def _text(signal: SignalText) -> str:
    text = msgspec.json.encode(signal)
    return (
        text if len(text) <= LONGEST else msgspec.json.encode(SignalText(signal.sender, None, signal.changed))
    ).decode()


def channel_of(schema: str) -> str:
    """The channel of a store. Names of channels hold 63 bytes, and several stores can share a database."""
    name = f"perdure_{schema}"
    return name if len(name) < 60 else f"perdure_{blake2b(schema.encode(), digest_size=16).hexdigest()}"
