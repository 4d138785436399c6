"""A pool of connections.

It opens a connection when all others are busy, up to a limit; then callers wait in line. It closes connections that are
broken or come back inside a transaction. A connection on which the server sent something unasked is about to be closed by
the server, so it is not handed out. After a restart of the server, callers therefore get new connections and no errors. If a
connection cannot be opened, the caller gets the error at once and decides when to retry.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus

from .errors import FULL_HOUSE, state_of

IDLE_FOR = 300.0  # seconds after which a connection that nobody needs is closed
Connection = AsyncConnection[tuple[Any, ...]]


class Pool:
    """Up to `most` connections of one kind."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], most: int) -> None:
        self._connect = connect
        self._most = most
        self._idle: list[tuple[Connection, float]] = []  # the most recently used last
        self._busy: set[Connection] = set()
        self._opening = 0
        self._line: deque[asyncio.Future[Connection | None]] = deque()
        self._closed = False

    async def take(self, within: float, open_within: float | None = None) -> Connection:
        """A connection that works, as far as can be seen from here. TimeoutError: all were busy for so long, or none could
        be opened within `open_within`."""
        until = monotonic() + within
        open_until = until if open_within is None else monotonic() + open_within
        while not self._closed:
            if (connection := self._idle_one()) is not None:
                return connection
            if len(self._busy) + self._opening < self._most:
                try:
                    return await self._open_one(open_until - monotonic())
                except psycopg.Error as error:
                    if state_of(error) != FULL_HOUSE or not (self._busy or self._idle):
                        raise
                    if self._idle:  # given back meanwhile
                        continue
            # what is given back is handed to the first in line; None: it was broken, and there is room for another
            given = await self._wait_in_line(until - monotonic())
            if given is not None:
                return given
        raise psycopg.InterfaceError("the store is closed")

    def give(self, connection: Connection) -> None:
        """Done with it."""
        self._busy.discard(connection)
        if self._closed or not _is_fit(connection):
            _close(connection)
            self._hand_on(None)
        elif not self._hand_on(connection):
            self._idle.append((connection, monotonic()))
            if self._idle[0][1] < monotonic() - IDLE_FOR:
                _close(self._idle.pop(0)[0])

    def forget(self) -> None:
        """Close the idle ones: they lead to the wrong server."""
        while self._idle:
            _close(self._idle.pop()[0])

    def hang_up(self) -> None:
        """End all connections, also under those who use them."""
        self.forget()
        for connection in self._busy:
            hang_up(connection)

    async def close(self, within: float) -> None:
        """Close everything; those at work may finish."""
        self._closed = True
        self.forget()
        while self._hand_on(None):
            pass
        until = monotonic() + within
        while (self._busy or self._opening) and monotonic() < until:
            await asyncio.sleep(0.005)
        self.hang_up()

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection, _ = self._idle.pop()
            if _is_silent(connection):
                self._busy.add(connection)
                return connection
            _close(connection)
        return None

    async def _open_one(self, within: float) -> Connection:
        """Open one. It is opened to the end even if its taker is gone by then: it is there for the next one."""
        self._opening += 1
        opening = asyncio.ensure_future(self._connect())
        opening.add_done_callback(self._note_opened)
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(self._give_back_unwanted)
            raise

    def _note_opened(self, opening: asyncio.Future[Connection]) -> None:
        self._opening -= 1
        if opening.cancelled() or opening.exception() is not None:
            self._hand_on(None)
        else:
            self._busy.add(opening.result())

    def _give_back_unwanted(self, opening: asyncio.Future[Connection]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.give(opening.result())

    async def _wait_in_line(self, within: float) -> Connection | None:
        place: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            async with asyncio.timeout(within):
                return await place
        except BaseException:
            if place.done() and not place.cancelled() and (given := place.result()) is not None:
                self.give(given)
            raise
        finally:
            with suppress(ValueError):
                self._line.remove(place)

    def _hand_on(self, connection: Connection | None) -> bool:
        while self._line:
            place = self._line.popleft()
            if not place.done():
                if connection is not None:
                    self._busy.add(connection)
                place.set_result(connection)
                return True
        return False


def hang_up(connection: Connection) -> None:
    """End a connection under whoever waits for its answer: the wait ends with an error, as if the server had hung up."""
    with suppress(OSError, psycopg.Error):
        line = socket.socket(fileno=os.dup(connection.pgconn.socket))
        try:
            line.shutdown(socket.SHUT_RDWR)
        finally:
            line.close()


def _is_fit(connection: Connection) -> bool:
    server = connection.pgconn
    return (
        server.status == ConnStatus.OK
        and server.transaction_status == TransactionStatus.IDLE
        and server.pipeline_status == PipelineStatus.OFF
    )


def _is_silent(connection: Connection) -> bool:
    """A server says nothing unasked but that it is about to end, or has new settings: then a fresh connection is better."""
    try:
        poller = select.poll()
        poller.register(connection.pgconn.socket, select.POLLIN)
        return not poller.poll(0)
    except psycopg.Error:
        return False


def _close(connection: Connection) -> None:
    connection.pgconn.finish()
