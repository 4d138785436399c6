"""Wake-ups: to listeners of this loop directly, to other processes by PUBLISH and from them by SUBSCRIBE.

The scripts publish what became ready or ended, after they have written it. The ear is a connection of its own. When it
breaks it is opened again, for ever, and everybody is woken once it is, because something may have been missed; when it is
silent for long it is asked whether it still hears.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from typing import Any

from perdure.storage.contract import Topic
from perdure.storage.wakeups import Listener, Listeners

from .client import RedisClient
from .connection import RedisConnection, packed
from .errors import explained
from .keys import plain

CHECK_EVERY, ANSWER_WITHIN = 10.0, 5.0  # seconds
PAUSE, LONGEST_PAUSE = 0.05, 5.0
_log = logging.getLogger("perdure")


class Signals:
    """Who listens in this loop, and the ear for the others."""

    def __init__(self, link: RedisClient, origin: bytes) -> None:
        self._link = link
        self._origin = origin  # begins every message of ours
        self._listeners = Listeners()
        self._ear: asyncio.Task[None] | None = None
        self._heard: frozenset[str] = frozenset()
        self._wire: RedisConnection | None = None
        self._silent = True
        self._closed = False

    def tell(self, ready: Collection[str] | None, changed: bool) -> None:
        self._listeners.notify(ready, changed, here=True)

    def listen(self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None) -> Callable[[], None]:
        listener = Listener(topic, wake, queues)
        self._listeners.add(listener)
        if self._link.address.signals:
            self._prick_up()
        return listener.stop

    async def close(self) -> None:
        self._listeners.clear()
        self._closed = True
        if self._ear is not None:
            self._ear.cancel()
            await asyncio.wait([self._ear])

    def hang_up(self) -> None:
        """End the connection that listens; another is opened."""
        if self._wire is not None:
            self._wire.close()

    # -- the ear -------------------------------------------------------------------------------------
    def _prick_up(self) -> None:
        """Hear at least what is listened for. A channel once heard stays: leaving it would gain little."""
        wanted = self._heard | {self._channel(topic) for topic in self._listeners.topics()}
        if self._ear is None or self._ear.done():
            self._heard = wanted
            self._ear = asyncio.get_running_loop().create_task(self._hear(), name="perdure redis ear")
        elif wanted != self._heard:
            self._heard = wanted
            if self._wire is not None:
                self._subscribe(self._wire)  # once more is harmless, and the answer comes to the ear

    def _channel(self, topic: Topic) -> str:
        return self._link.keys.ready if topic == "ready" else self._link.keys.changed

    async def _hear(self) -> None:
        pause = PAUSE
        while not self._closed:
            try:
                self._wire = await self._link.connect(self._heard_of)
                self._subscribe(self._wire)
                pause = PAUSE
                await self._watch(self._wire)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                _log.debug("signals are not heard: %s", explained(error, str(self._link.address)))
            finally:
                broken, self._wire = self._wire, None
                if broken is not None:
                    broken.close()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _subscribe(self, wire: RedisConnection) -> None:
        wire.say(packed(("SUBSCRIBE", *sorted(self._heard))))

    async def _watch(self, wire: RedisConnection) -> None:
        """Until the wire ends, or is silent even when it is asked."""
        while True:
            self._silent = True
            await wire.ends(within=CHECK_EVERY)
            if self._silent:
                wire.say(packed(("PING",)))
                await wire.ends(within=ANSWER_WITHIN)
            if self._silent:
                raise TimeoutError

    def _heard_of(self, message: Any) -> None:
        self._silent = False
        kind, channel, text = message if len(message) == 3 else (*message, b"", b"")[:3]
        if kind == b"subscribe":
            self.tell(None, True)  # something may have been missed
        elif kind == b"message" and not text.startswith(self._origin):
            if channel.decode() == self._link.keys.changed:
                self.tell((), True)
            else:
                self.tell([plain(name) for name in text[len(self._origin) :].split(b"\x00")], False)
