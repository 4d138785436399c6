"""Wake-ups: to this process directly, to others through a collection of signals that they watch.

After a commit one small document names the queues with ready jobs, and says whether some job changed. The store writes it
after the verb, together with other signals of the same moment; the server removes it a minute later. An enqueue or exchange
that comes alone writes it in its own transaction, which saves one wait for the disk. Other processes read signals through a
change stream. The jobs themselves are not watched: the stream would carry every change of every job. An enqueue in a
caller's transaction writes its signal there, so others see it if and when the caller commits.

A signal may be lost. A listener never stops for good: a stream that breaks is opened again, and every listener is woken
once when a stream has opened.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from secrets import token_hex
from time import monotonic
from typing import Any

from perdure.storage.contract import Topic
from perdure.storage.wakeups import Listener, Listeners

from ..reading.records import Document
from .errors import error_for
from .operations import PREFIX
from .server import TROUBLE, Server

_log = logging.getLogger("perdure")
COLLECTION = f"{PREFIX}signals"
GATHER = {"ready": 0.0, "changed": 0.005}  # seconds that a signal waits for company
GAP = 0.01  # seconds between two
AWAIT = 10_000  # milliseconds that the server keeps a stream waiting before it says that there is nothing
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
FLUSH = 1.0


def signal_document(ready: Collection[str], changed: bool, by: str | None = None) -> Document:
    document: Document = {"at": datetime.now(UTC)}
    if ready:
        document["ready"] = sorted(ready)
    if changed:
        document["changed"] = True
    return document if by is None else {**document, "by": by}


class Signals:
    """The listeners of one event loop, the signals that wait to be sent, and the change streams."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._name = token_hex(8)
        self._listeners = Listeners()
        self._ready: set[str] = set()
        self._changed = False
        self._sent = 0.0
        self._sending: asyncio.Task[None] | None = None
        self._streams: dict[Topic, asyncio.Task[None]] = {}
        self._logged_trouble = False
        self._closed = False

    # -- telling -------------------------------------------------------------------------------------
    def inside(self, ready: Collection[str], changed: bool) -> list[Document]:
        """The signal that a transaction may write itself; none if others were sent just now."""
        if not (ready or changed) or not self._server.address.signals:
            return []
        if self._sending is not None or monotonic() - self._sent < GAP:
            return []
        return [signal_document(ready, changed, self._name)]

    def note_sent_inside(self, ready: Collection[str], changed: bool) -> None:
        """A transaction that wrote its own signal was committed."""
        self._sent = monotonic()
        self._listeners.notify(ready, changed)

    def tell(self, ready: Collection[str], changed: bool) -> None:
        """Wake the listeners of this process, and send a signal to others."""
        if self._closed or not (ready or changed):
            return
        self._listeners.notify(ready, changed)
        if not self._server.address.signals:
            return
        self._ready |= set(ready)
        self._changed |= changed
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name="perdure signals")

    async def _send(self) -> None:
        try:
            if not self._ready:
                await asyncio.sleep(GATHER["changed"])
            while self._ready or self._changed:
                document = signal_document(self._ready, self._changed, self._name)
                self._ready, self._changed = set(), False
                self._sent = monotonic()
                with suppress(*TROUBLE):
                    await self._server.calls.run(self._server.database[COLLECTION].insert_one(document))
                await asyncio.sleep(GAP)
        finally:
            self._sending = None

    # -- listening -----------------------------------------------------------------------------------
    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        listener = Listener(topic, wake, queues)
        self._listeners.add(listener)
        if topic not in self._streams and self._server.address.signals:
            self._start_listening(topic)
        return listener.stop

    def restart(self) -> None:
        """The client was replaced: open the change streams on the new one."""
        for topic, ear in list(self._streams.items()):
            ear.cancel()
            self._start_listening(topic)

    def _start_listening(self, topic: Topic) -> None:
        self._streams[topic] = asyncio.create_task(self._listen(topic), name=f"perdure ear for {topic}")

    async def _listen(self, topic: Topic) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                async with await self._stream(topic) as stream:
                    self._wake_all(topic)
                    async for event in stream:
                        self._pass_on(topic, event["fullDocument"])
                        pause = FIRST_PAUSE
            except Exception as error:
                _log.debug("a change stream broke and is opened again", exc_info=True)
                if pause == LONGEST_PAUSE and not self._logged_trouble:
                    self._logged_trouble = True
                    _log.warning("%s; until it does, workers only poll", _trouble(error, self._server))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _stream(self, topic: Topic) -> Any:
        """A change stream with the signals of other processes about a topic."""
        others: Document = {
            "operationType": "insert",
            f"fullDocument.{topic}": {"$exists": True},
            "fullDocument.by": {"$ne": self._name},
        }
        pipeline = [{"$match": others}, {"$project": {"fullDocument.ready": 1}}]
        return await self._server.committed[COLLECTION].watch(pipeline, max_await_time_ms=AWAIT)

    def _pass_on(self, topic: Topic, document: Document) -> None:
        self._listeners.notify(document.get("ready", ()) if topic == "ready" else (), topic == "changed")

    def _wake_all(self, topic: Topic) -> None:
        self._listeners.notify(None if topic == "ready" else (), topic == "changed")

    async def close(self) -> None:
        self._closed = True
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=FLUSH)
        tasks = [*self._streams.values(), *([self._sending] if self._sending is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FLUSH)
        self._streams = {}
        self._listeners.clear()


def _trouble(error: Exception, server: Server) -> str:
    return f"the change stream that carries signals does not open: {error_for(error, server.address)}"
