"""Connections to the server, and the way of a command through trouble.

A command goes out on a connection of its own and comes back, or the connection is thrown away: nobody can tell what a half
read one would say next. Commands that are safe to repeat are said again when the connection broke; the others only
when the server surely did nothing: it was not reached, it is loading, it has become a replica, our keys have moved.
A server that has forgotten a script (restart, SCRIPT FLUSH, failover) is given its text again. However many callers wait for
a connection, each has its answer or an error within the store's limit.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time_ns
from typing import Any, NamedTuple

from redis.exceptions import MovedError, NoScriptError, ResponseError

from perdure.errors import StoreError, StoreUnavailable
from perdure.storage.contract import Storage
from perdure.storage.rules.unreadable import log_set_aside

from .address import Address
from .connection import Connections, pack
from .errors import Kind, explained, is_wrong_type, kind_of
from .keys import TYPES, Keys
from .script_args import Argument
from .scripts import script

PATIENCE = 3.0  # seconds that a command is tried for
PAUSE, LONGEST_PAUSE = 0.02, 0.5
CONNECT_WITHIN, ANSWER_WITHIN = 5.0, 20.0
SILENT = 2.0  # seconds without an answer after which a caller who goes away leaves a suspicious server behind
CLOSE_WITHIN = 2.0  # seconds that commands get to end when the store is closed
MOST_CONNECTIONS = 32


class Unreached(StoreUnavailable):
    """The server was not reached, or the answer was lost: whether the command took hold is not known."""


class ScriptCall(NamedTuple):
    """A script on its way to the server."""

    name: str
    arguments: Sequence[Argument]
    packed: bytes


class RedisClient:
    """The connections of one store in one event loop."""

    def __init__(self, address: Address, limit: float = Storage.gives_up_after) -> None:
        """`limit`: seconds within which every caller has an answer or an error."""
        self.address = address
        self._limit = limit
        self._connections = Connections(address)
        self._in_use: set[Any] = set()
        self.keys = Keys(address.prefix)
        self._idle: list[Any] = []
        self._places = asyncio.Semaphore(MOST_CONNECTIONS)
        self._busy = 0
        self._quiet: asyncio.Event | None = None  # set when nobody is busy, for whoever waits to close

    async def run(self, name: str, arguments: Sequence[Argument], *, repeat: bool, patience: float = PATIENCE) -> Any:
        """Run a script with all keys of the store. `repeat`: saying it twice does no harm."""
        return await self.ask(self.question(name, arguments), repeat=repeat, patience=patience)

    def question(self, name: str, arguments: Sequence[Argument]) -> ScriptCall:
        """A script and what it is given, ready to be sent."""
        packed = pack(("EVALSHA", script(name).digest, len(self.keys.all), *self.keys.all, *arguments))
        return ScriptCall(name, arguments, packed)

    async def ask(self, question: ScriptCall, *, repeat: bool, patience: float = PATIENCE) -> Any:
        try:
            return await self._run_script(question, repeat, patience)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise explained(error, str(self.address)) from error
        # what the script had written stays: jobs of a claim whose answer is lost come back when their lease is over
        await self.move_foreign()
        try:
            return await self._run_script(question, False, patience)
        except ResponseError as error:
            if is_wrong_type(error):  # another key meanwhile
                await self.move_foreign()
            raise explained(error, str(self.address)) from error

    async def _run_script(self, question: ScriptCall, repeat: bool, patience: float) -> Any:
        try:
            return await self._patiently(question.packed, repeat, patience)
        except NoScriptError:
            keys = self.keys.all
            command = pack(("EVAL", script(question.name).text, len(keys), *keys, *question.arguments))
            return await self._patiently(command, repeat, patience)

    async def move_foreign(self) -> list[str]:
        """Move keys away that hold what is not ours; gives their names. What is moved is kept."""
        keys, names = self.keys.all, list(TYPES)
        away = [f"{key}:unreadable:{time_ns()}" for key in keys]
        told = ("", json.dumps(names), json.dumps(list(TYPES.values())))
        moved = await self._answered(
            pack(("EVAL", script("move_foreign").text, 2 * len(keys), *keys, *away, *told)), True, PATIENCE
        )
        for name in (raw.decode() for raw in moved):
            log_set_aside("key", self.keys[name], ("type",))
        return [raw.decode() for raw in moved]

    async def command(self, *arguments: Argument, repeat: bool = True, patience: float = PATIENCE) -> Any:
        """A plain command."""
        try:
            return await self._patiently(pack(arguments), repeat, patience)
        except ResponseError as error:
            if is_wrong_type(error):
                await self.move_foreign()
                return await self._answered(pack(arguments), repeat, patience)
            raise explained(error, str(self.address)) from error

    async def connect(self, within: float = CONNECT_WITHIN) -> Any:
        """A new connection of redis-py, which is the caller's to close."""
        return await self._connections.connect(min(within, CONNECT_WITHIN))

    async def close(self) -> None:
        """Let commands under way end, for a while, then close the connections."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN):
                while self._busy:
                    self._quiet = self._quiet or asyncio.Event()
                    await self._quiet.wait()
        await self.disconnect()
        await self._connections.close()

    async def disconnect(self) -> None:
        """Close all connections, also under commands that wait for an answer: the next command opens a new one."""
        await self._close_idle()
        for connection in list(self._in_use):
            await connection.disconnect(nowait=True)

    # -- below ---------------------------------------------------------------------------------------
    async def _answered(self, packed: bytes, repeat: bool, patience: float) -> Any:
        try:
            return await self._patiently(packed, repeat, patience)
        except ResponseError as error:
            raise explained(error, str(self.address)) from error

    async def _patiently(self, packed: bytes, repeat: bool, patience: float) -> Any:
        self._busy += 1
        began, pause = monotonic(), PAUSE
        until = began + self._limit
        try:
            while True:
                attempt = _Attempt()
                try:
                    if self._places.locked():
                        async with asyncio.timeout(until - monotonic()):
                            await self._places.acquire()
                    else:
                        await self._places.acquire()
                    try:
                        return await self._attempt(packed, until, attempt)
                    finally:
                        self._places.release()
                except StoreError:
                    raise
                except Exception as error:
                    last = monotonic() + pause > began + patience
                    await self._judge(error, attempt.sent and not repeat, last)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._busy -= 1
            if self._quiet is not None and not self._busy:
                self._quiet.set()
                self._quiet = None

    async def _attempt(self, packed: bytes, until: float, attempt: _Attempt) -> Any:
        """Send a command once, on a connection that nobody else uses."""
        async with asyncio.timeout(min(ANSWER_WITHIN, until - monotonic())):
            connection = await self._take_connection()
            attempt.sent = True
            return await self._ask(connection, packed)

    async def _take_connection(self) -> Any:
        if self._idle:
            connection = self._idle.pop()
            if await self._connections.is_usable(connection):
                return connection
            await connection.disconnect(nowait=True)
        return await self.connect()

    async def _ask(self, connection: Any, packed: bytes) -> Any:
        """One command and its answer. After anything but a whole answer, nobody can tell what comes next: it is closed."""
        whole = False
        began = monotonic()
        self._in_use.add(connection)
        try:
            await connection.send_packed_command(packed)
            answer = await connection.read_response()
            whole = True
            return answer
        except ResponseError:
            whole = True
            raise
        finally:
            self._in_use.discard(connection)
            if whole:
                self._idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
                if monotonic() - began > SILENT:  # those that lie idle may lead nowhere as well
                    await self._close_idle()

    async def _judge(self, error: Exception, once: bool, last: bool) -> None:
        """Whether a command may be tried again after this. `once`: it was sent, and must not be said twice; `last`: it was
        tried for long enough."""
        kind = kind_of(error)
        if kind is Kind.REFUSED:
            if isinstance(error, ResponseError):
                raise error
            raise explained(error, str(self.address)) from error
        if kind is Kind.BROKEN and once:
            raise Unreached(str(explained(error, str(self.address)))).at(self.address) from error
        await self._follow(error)
        if last:
            raise Unreached(str(explained(error, str(self.address)))).at(self.address) from error

    async def _follow(self, error: BaseException) -> None:
        """After a failover or a move the old connections lead nowhere; the cluster says where our keys are now."""
        if type(error) is MovedError and self.address.socket is None:
            self.address = replace(self.address, host=error.host or self.address.host, port=int(error.port))
            self._connections = Connections(self.address)
        await self._close_idle()

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)


class _Attempt:
    """Whether a command may have reached the server."""

    sent = False
