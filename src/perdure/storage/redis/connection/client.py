"""Sends scripts and commands to the server, and tries again after errors.

Each command has a connection for itself. If its answer is not read to the end, the connection is closed, because nobody can
tell what would come next on it. A command that may be repeated is sent again when the connection broke. Any other is sent
again only if the server surely did nothing: it was not reached, it is loading, it has become a replica, our keys have
moved. A server that does not know a script (after a restart, SCRIPT FLUSH, a failover) is sent its text. However many
callers wait for a connection, each has its answer or an error within the store's limit.
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

from ..address import Address
from ..keys import TYPES, Keys
from ..script_args import Argument
from .connection import Connections, pack
from .errors import Kind, is_wrong_type, kind_of, store_error_of
from .scripts import script

RETRY_FOR = 3.0  # seconds that a command is tried for
PAUSE, LONGEST_PAUSE = 0.02, 0.5
CONNECT_WITHIN, ANSWER_WITHIN = 5.0, 20.0
SILENT = 2.0  # after so many seconds without an answer, a cancelled call closes the idle connections too
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
        self._quiet: asyncio.Event | None = None  # set when no command is under way, for `close`

    async def run(self, name: str, arguments: Sequence[Argument], *, repeat: bool, retry_for: float = RETRY_FOR) -> Any:
        """Run a script with all keys of the store. `repeat`: sending it twice does no harm."""
        return await self.send(self.prepare(name, arguments), repeat=repeat, retry_for=retry_for)

    def prepare(self, name: str, arguments: Sequence[Argument]) -> ScriptCall:
        """Pack a script and its arguments, ready to be sent."""
        packed = pack(("EVALSHA", script(name).digest, len(self.keys.all), *self.keys.all, *arguments))
        return ScriptCall(name, arguments, packed)

    async def send(self, call: ScriptCall, *, repeat: bool, retry_for: float = RETRY_FOR) -> Any:
        try:
            return await self._run_script(call, repeat, retry_for)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise store_error_of(error, str(self.address)) from error
        # what the script had written stays: jobs of a claim whose answer is lost come back when their lease is over
        await self.move_foreign()
        try:
            return await self._run_script(call, False, retry_for)
        except ResponseError as error:
            if is_wrong_type(error):  # another key meanwhile
                await self.move_foreign()
            raise store_error_of(error, str(self.address)) from error

    async def _run_script(self, call: ScriptCall, repeat: bool, retry_for: float) -> Any:
        try:
            return await self._retry(call.packed, repeat, retry_for)
        except NoScriptError:
            keys = self.keys.all
            command = pack(("EVAL", script(call.name).text, len(keys), *keys, *call.arguments))
            return await self._retry(command, repeat, retry_for)

    async def move_foreign(self) -> list[str]:
        """Rename keys of another type than ours, so that they stop nothing. Returns their names; what they hold is kept."""
        keys, names = self.keys.all, list(TYPES)
        away = [f"{key}:unreadable:{time_ns()}" for key in keys]
        arguments = ("", json.dumps(names), json.dumps(list(TYPES.values())))
        moved = await self._send_or_explain(
            pack(("EVAL", script("move_foreign").text, 2 * len(keys), *keys, *away, *arguments)), True, RETRY_FOR
        )
        for name in (raw.decode() for raw in moved):
            log_set_aside("key", self.keys[name], ("type",))
        return [raw.decode() for raw in moved]

    async def command(self, *arguments: Argument, repeat: bool = True, retry_for: float = RETRY_FOR) -> Any:
        """Send a command that is no script."""
        try:
            return await self._retry(pack(arguments), repeat, retry_for)
        except ResponseError as error:
            if is_wrong_type(error):
                await self.move_foreign()
                return await self._send_or_explain(pack(arguments), repeat, retry_for)
            raise store_error_of(error, str(self.address)) from error

    async def connect(self, within: float = CONNECT_WITHIN) -> Any:
        """Open a connection of redis-py. The caller closes it."""
        return await self._connections.connect(min(within, CONNECT_WITHIN))

    async def close(self) -> None:
        """Wait a while for commands under way, then close the connections."""
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
    async def _send_or_explain(self, packed: bytes, repeat: bool, retry_for: float) -> Any:
        try:
            return await self._retry(packed, repeat, retry_for)
        except ResponseError as error:
            raise store_error_of(error, str(self.address)) from error

    async def _retry(self, packed: bytes, repeat: bool, retry_for: float) -> Any:
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
                    last = monotonic() + pause > began + retry_for
                    await self._raise_if_final(error, attempt.sent and not repeat, last)
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
        """Send one command and read its answer. After anything but a whole answer the connection is closed."""
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
                if monotonic() - began > SILENT:  # idle connections may lead nowhere as well
                    await self._close_idle()

    async def _raise_if_final(self, error: Exception, once: bool, last: bool) -> None:
        """Raise unless a command may be tried again. `once`: it was sent, and must not be sent twice; `last`: it was tried
        for long enough."""
        kind = kind_of(error)
        if kind is Kind.REFUSED:
            if isinstance(error, ResponseError):
                raise error
            raise store_error_of(error, str(self.address)) from error
        if kind is Kind.BROKEN and once:
            raise Unreached(str(store_error_of(error, str(self.address)))).at(self.address) from error
        await self._follow_move(error)
        if last:
            raise Unreached(str(store_error_of(error, str(self.address)))).at(self.address) from error

    async def _follow_move(self, error: BaseException) -> None:
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
