"""Wake-ups: to listeners of this loop directly, to other processes by PUBLISH and from them by SUBSCRIBE.

The scripts publish what became ready or ended, after they have written it. Signals arrive on a connection of
their own. A task opens it again whenever it breaks, and then wakes all listeners, because signals may have been lost. If
nothing arrives for long, it sends PING.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from perdure.storage.contract import Topic
from perdure.storage.wakeups import Listener, Listeners

from ..keys import unescape
from .client import RedisClient
from .errors import store_error_of

CHECK_EVERY, ANSWER_WITHIN = 10.0, 5.0  # seconds
PAUSE, LONGEST_PAUSE = 0.05, 5.0
_log = logging.getLogger("perdure")


class Signals:
    """The listeners of this loop, and the task that receives signals of other processes."""

    def __init__(self, client: RedisClient, origin: bytes) -> None:
        self._client = client
        self._origin = origin  # begins every message of ours
        self._listeners = Listeners()
        self._task: asyncio.Task[None] | None = None
        self._subscribing: asyncio.Task[None] | None = None
        self._channels: frozenset[str] = frozenset()
        self._connection: Any = None
        self._closed = False

    def notify(self, ready: Collection[str] | None, changed: bool) -> None:
        self._listeners.notify(ready, changed, here=True)

    def listen(self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None) -> Callable[[], None]:
        listener = Listener(topic, wake, queues)
        self._listeners.add(listener)
        if self._client.address.signals:
            self._subscribe_to_topics()
        return listener.stop

    async def close(self) -> None:
        self._listeners.clear()
        self._closed = True
        tasks = [task for task in (self._subscribing, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def disconnect(self) -> None:
        """Close the connection that listens; the task opens another."""
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    # -- the subscription ----------------------------------------------------------------------------
    def _subscribe_to_topics(self) -> None:
        """Receive at least what is listened for. A channel stays subscribed: leaving it would gain little."""
        wanted = self._channels | {self._channel(topic) for topic in self._listeners.topics()}
        if self._task is None or self._task.done():
            self._channels = wanted
            self._task = asyncio.get_running_loop().create_task(self._run(), name="perdure redis signals")
        elif wanted != self._channels:
            self._channels = wanted
            if self._connection is not None:  # once more is harmless, and the task reads the answer
                subscribing = self._subscribe(self._connection)
                self._subscribing = asyncio.get_running_loop().create_task(subscribing)

    def _channel(self, topic: Topic) -> str:
        return self._client.keys.ready if topic == "ready" else self._client.keys.changed

    async def _run(self) -> None:
        pause = PAUSE
        while not self._closed:
            connection = None
            try:
                connection = await self._client.connect()
                self._connection = connection
                await self._subscribe(connection)
                pause = PAUSE
                await self._receive_all(connection)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                _log.debug("signals are not heard: %s", store_error_of(error, str(self._client.address)))
            finally:
                self._connection = None
                if connection is not None:
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _subscribe(self, connection: Any) -> None:
        with suppress(RedisError):  # whoever reads from it notices, too
            await connection.send_command("SUBSCRIBE", *sorted(self._channels))

    async def _receive_all(self, connection: Any) -> None:
        """Until the connection ends, or brings nothing even after a PING."""
        while True:
            message = await connection.read_response(timeout=CHECK_EVERY)
            if message is None:
                await connection.send_command("PING")
                message = await connection.read_response(timeout=ANSWER_WITHIN)
            if message is None:
                raise TimeoutError
            self._receive(message)

    def _receive(self, message: Any) -> None:
        kind, channel, text = message if len(message) == 3 else (*message, b"", b"")[:3]
        if kind == b"subscribe":
            self.notify(None, True)  # something may have been missed
        elif kind == b"message" and not text.startswith(self._origin):
            if channel.decode() == self._client.keys.changed:
                self.notify((), True)
            else:
                self.notify([unescape(name) for name in text[len(self._origin) :].split(b"\x00")], False)
