"""Connections to the server. They are redis-py's, made as the address says: TCP, TLS, a Unix socket, or by way of Sentinels.

redis-py authenticates, selects the database, and parses answers. Trying again
after an error is up to `client.py`, because only the caller of a command knows whether it may be repeated.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from ..address import Address

REFUSED_WITHIN = 0.2  # seconds in which a server that accepts no more clients says why
ANSWER_WITHIN, CONNECT_WITHIN = 10.0, 5.0  # seconds, for the blocking client
# Answers have the form of RESP 2. Scripts answer in the same form either way, and not every proxy speaks RESP 3.
_PROTOCOL = 2
# One Sentinel that does not answer must not use up the time for the others.
_OF_SENTINELS = {"protocol": _PROTOCOL, "socket_timeout": 1.0, "socket_connect_timeout": 1.0}

Word = str | bytes | int | float


def pack(words: tuple[Word, ...]) -> bytes:
    """A command as bytes. hiredis packs a thousand words in the time in which redis-py packs thirty."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub knows only one word
    return command


class Connections:
    """Makes and checks connections of one address. The caller closes them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: Any = None  # made with the first connection: redis-py reads files for that, which may fail
        self._sentinel: Any = None

    async def connect(self, within: float) -> Any:
        """Open a connection, in so many seconds."""
        if self._pool is None:
            self._make_pool()
        connection = self._pool.make_connection()
        try:
            async with asyncio.timeout(within):
                await connection.connect()
                await connection.send_command("PING")  # a server that refuses a client says so, or hangs up, by now
                await connection.read_response()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, ConnectionError) and (refusal := await self._read_refusal()) is not None:
                raise refusal from error
            raise
        return connection

    async def is_usable(self, connection: Any) -> bool:
        """Whether an idle connection is open, and nothing unexpected was received on it."""
        try:
            # redis-py 8 renamed it. The pool's own check does the same, at twice the cost.
            check = connection.can_read if hasattr(connection, "can_read") else connection.can_read_destructive
            return not await check()
        except RedisError:
            return False

    async def close(self) -> None:
        """Close the connections to the Sentinels."""
        if self._sentinel is not None:
            for client in self._sentinel.sentinels:
                await client.aclose()

    def _make_pool(self) -> None:
        # Timeouts are the caller's: one around a whole command costs less than one around each part of it.
        options: dict[str, Any] = {"retry": AsyncRetry(NoBackoff(), 0), **_options(self._address)}
        options |= {"socket_timeout": None, "socket_connect_timeout": None}
        if self._address.sentinels:
            self._sentinel = AsyncSentinel(self._address.sentinels, sentinel_kwargs=_OF_SENTINELS)  # type: ignore[no-untyped-call]
            self._pool = self._sentinel.master_for(self._address.primary, **options).connection_pool
        else:
            self._pool = AsyncRedis(**options).connection_pool

    async def _read_refusal(self) -> ResponseError | None:
        """Read why a server closes new connections. It sends that at once; redis-py writes first and loses it."""
        address = self._address
        if address.sentinels:
            return None
        opening = (
            asyncio.open_connection(address.host, address.port)
            if address.socket is None
            else asyncio.open_unix_connection(address.socket)
        )
        try:
            async with asyncio.timeout(REFUSED_WITHIN):
                reader, writer = await opening
                try:
                    line = await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError):
            return None
        return ResponseError(line[1:].decode("utf-8", "replace").strip()) if line.startswith(b"-") else None


def blocking_client(address: Address) -> Any:
    """A client without an event loop, for `perdure migrate`."""
    timeouts = {"socket_timeout": ANSWER_WITHIN, "socket_connect_timeout": CONNECT_WITHIN}
    options = _options(address) | {"retry": Retry(NoBackoff(), 0), **timeouts}
    if not address.sentinels:
        return Redis(**options)
    sentinel: Any = Sentinel(address.sentinels, sentinel_kwargs=_OF_SENTINELS)  # type: ignore[no-untyped-call]
    return sentinel.master_for(address.primary, **options)


def _options(address: Address) -> dict[str, Any]:
    shared: dict[str, Any] = {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "protocol": _PROTOCOL,
    }
    if address.socket is not None:
        return shared | {"unix_socket_path": address.socket}
    if address.tls:
        files = {"ssl_ca_certs": address.ca, "ssl_certfile": address.cert, "ssl_keyfile": address.key}
        shared |= {"ssl": True, "ssl_check_hostname": True, **files}
    return shared if address.sentinels else shared | {"host": address.host, "port": address.port}
