"""A connection to the server, without ways around.

redis-py opens it (TLS, password, database) and closes it. In between, what the server says is parsed where it arrives and
given to whoever waits for it at once: the driver's own way takes more turns of the loop than all the rest of a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis
from redis.exceptions import ConnectionError, InvalidResponse

Driven = Any  # a connection of redis-py, whose types are incomplete


class Wire(asyncio.Protocol):
    """One question at a time has one answer; or, with `heard`, whatever comes is heard."""

    def __init__(self, connection: Driven, heard: Callable[[Any], None] | None = None) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._answers = hiredis.Reader(protocolError=InvalidResponse, replyError=connection._parser.parse_error)
        self._heard = heard
        self._waiting: asyncio.Future[Any] | None = None
        self._ended: asyncio.Future[Exception] = self._loop.create_future()
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)

    @property
    def lives(self) -> bool:
        """Whether nobody has closed it, as far as the loop has heard."""
        return not self._ended.done() and not self._transport.is_closing()

    def say(self, packed: bytes) -> None:
        self._transport.write(packed)

    async def ask(self, packed: bytes, within: float) -> Any:
        """The answer; an error is raised. Whoever is interrupted here must close the wire: the answer may yet come."""
        if not self.lives:
            raise ConnectionError("the connection was closed")
        self._waiting = answer = self._loop.create_future()
        timer = self._loop.call_later(within, _give_up, answer)
        try:
            self._transport.write(packed)
            return await answer
        finally:
            timer.cancel()

    async def ends(self, within: float) -> None:
        """Waits so many seconds; raises at once when the connection ends."""
        await asyncio.wait([self._ended], timeout=within)
        if self._ended.done():
            raise self._ended.result()

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    # -- what the loop says --------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        try:
            self._answers.feed(data)
            while (answer := self._answers.gets()) is not False:
                self._receive(answer)
        except InvalidResponse as error:
            self._break_off(error)

    def connection_lost(self, error: Exception | None) -> None:
        why = error or ConnectionError("the server closed the connection")
        if not self._ended.done():
            self._ended.set_result(why)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(why)

    def _receive(self, answer: Any) -> None:
        refused = isinstance(answer, Exception)
        if self._heard is not None and not refused:
            self._heard(answer)
        elif self._waiting is None or self._waiting.done():  # nobody asked: who knows what it would say next
            self._break_off(answer if refused else InvalidResponse("an answer that nobody asked for"))
        elif refused:
            self._waiting.set_exception(answer)
        else:
            self._waiting.set_result(answer)

    def _break_off(self, error: Exception) -> None:
        self.connection_lost(error)
        self._transport.abort()


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
