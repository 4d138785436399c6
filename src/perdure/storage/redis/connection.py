"""A connection to the server, without ways around.

What the server says is parsed where it arrives and given to whoever waits for it at once: the driver's own way takes more
turns of the loop than all the rest of a command. So the connection is opened here too (TLS, password, database); of the
driver's there are the errors and their meaning.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError, InvalidResponse

from .address import Address

Heard = Callable[[Any], None]


def packed(words: tuple[str | bytes | int | float, ...]) -> bytes:
    """A command as the server reads it."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its types know only one word
    return command


class Beginning:
    """A command that always begins with the same words, packed once."""

    def __init__(self, *words: str | int) -> None:
        self._length = len(words)
        self._packed = _behind_count(packed(words))

    def packed(self, words: Sequence[str | bytes | int | float]) -> bytes:
        rest = _behind_count(packed(tuple(words))) if words else b""
        return b"*%d\r\n%b%b" % (self._length + len(words), self._packed, rest)


def _behind_count(command: bytes) -> bytes:
    return command[command.index(b"\n") + 1 :]


async def connected(address: Address, heard: Heard | None, within: float) -> RedisConnection:
    """A new wire, greeted. `heard`: what is said on it, unasked."""
    wire = RedisConnection()
    try:
        async with asyncio.timeout(within):
            await _reach(wire, address)
            for words in _greeting(address):
                await wire.asked(packed(words), within)
    except BaseException:
        wire.close()
        raise
    wire.on_push = heard
    return wire


async def _reach(wire: RedisConnection, address: Address) -> None:
    loop = asyncio.get_running_loop()
    if address.socket is not None:
        await loop.create_unix_connection(lambda: wire, address.socket)
        return
    tls = _tls(address.ca) if address.tls else None
    transport, _ = await loop.create_connection(lambda: wire, address.host, address.port, ssl=tls)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _tls(ca: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def _greeting(address: Address) -> list[tuple[str | int, ...]]:
    greeting: list[tuple[str | int, ...]] = []
    if address.username is not None:
        greeting.append(("AUTH", address.username, address.password or ""))
    elif address.password is not None:
        greeting.append(("AUTH", address.password))
    if address.database:
        greeting.append(("SELECT", address.database))
    return [*greeting, ("PING",)]  # a server that lets nobody in says so, or hangs up, at the first word


class RedisConnection(asyncio.Protocol):
    """One question at a time has one answer; or, once `heard` is given, whatever comes is heard."""

    def __init__(self) -> None:
        self.on_push: Heard | None = None
        self._loop = asyncio.get_running_loop()
        self._answers = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._waiting: asyncio.Future[Any] | None = None
        self._ended: asyncio.Future[Exception] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._until = 0.0  # when whoever waits gives up
        self._timer: asyncio.TimerHandle | None = None  # one for many questions: nearly all are answered long before

    @property
    def lives(self) -> bool:
        """Whether nobody has closed it, as far as the loop has heard."""
        return self._transport is not None and not self._ended.done() and not self._transport.is_closing()

    def say(self, packed: bytes) -> None:
        if self._transport is not None:
            self._transport.write(packed)

    def asked(self, packed: bytes, within: float) -> asyncio.Future[Any]:
        """The answer to come; an error is raised. Whoever does not await it must close the wire: it may yet come."""
        if not self.lives:
            raise self._ended.result() if self._ended.done() else ConnectionError("the connection was closed")
        self._waiting = answer = self._loop.create_future()
        self._until = until = self._loop.time() + within
        if self._timer is None or self._timer.when() > until:
            self._look_at(until)
        self.say(packed)
        return answer

    async def ends(self, within: float) -> None:
        """Waits so many seconds; raises at once when the connection ends."""
        await asyncio.wait([self._ended], timeout=within)
        if self._ended.done():
            raise self._ended.result()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- what the loop says --------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._answers.feed(data)
            while (answer := self._answers.gets()) is not False:
                self._receive(answer)
        except InvalidResponse as error:
            self._break_off(error)

    def connection_lost(self, error: Exception | None) -> None:
        why = error or ConnectionError("the server closed the connection")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ended.done():
            self._ended.set_result(why)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(why)

    def _receive(self, answer: Any) -> None:
        refused = isinstance(answer, Exception)
        if self.on_push is not None and not refused:
            self.on_push(answer)
        elif self._waiting is None or self._waiting.done():  # nobody asked: who knows what it would say next
            self._break_off(answer if refused else InvalidResponse("an answer that nobody asked for"))
        elif refused:
            self._waiting.set_exception(answer)
        else:
            self._waiting.set_result(answer)

    def _break_off(self, error: Exception) -> None:
        self.connection_lost(error)
        self.close()

    # -- the time limit ------------------------------------------------------------------------------
    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting is None or self._waiting.done():
            return
        if self._loop.time() >= self._until:
            self._waiting.set_exception(TimeoutError())
        else:
            self._look_at(self._until)


class ConnectionLimit:
    """Limits how many connections are in use. A free place is taken without a turn of the event loop; the others wait in the
    order they came. (A semaphore takes several calls even where nobody waits.)"""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def taken(self) -> bool:
        """Take a place, if one is free."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def take(self, within: float) -> None:
        """Wait for a place; TimeoutError when there is none for so long."""
        if self.taken():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(within):
                await place
        except BaseException:
            if place.done() and not place.cancelled():  # it was given to us, and we are gone
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place up, to the one who has waited longest: nobody can take it from him."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
