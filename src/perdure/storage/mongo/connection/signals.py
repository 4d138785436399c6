"""Wake-ups: to this process directly, to others through a collection of signals that they watch.

After a commit one small document says which queues have something ready and whether some job changed. It is written beside
the verb, gathered with what else is to be told, and removed by the server a minute later; an enqueue or an exchange that
comes alone writes it inside its own transaction, which saves whoever waits for it a wait for the disk. Others see it
through a change stream. The jobs themselves are not watched: a stream would be shown every move of every job. An enqueue in
a caller's transaction writes its signal inside, so it is seen when, and only when, the caller commits.

A signal may be lost, a listener may not go deaf: a stream that breaks is opened again, for ever, and whoever opens one looks
at everything once.
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
from .errors import explained
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
    """One loop's share: who listens here, what is to be told elsewhere, and the ears."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._name = token_hex(8)
        self._listeners = Listeners()
        self._ready: set[str] = set()
        self._changed = False
        self._sent = 0.0
        self._post: asyncio.Task[None] | None = None
        self._ears: dict[Topic, asyncio.Task[None]] = {}
        self._told_of_trouble = False
        self._closed = False

    # -- telling -------------------------------------------------------------------------------------
    def inside(self, ready: Collection[str], changed: bool) -> list[Document]:
        """The signal that a transaction may carry itself; none when others were sent just now."""
        if not (ready or changed) or not self._server.address.signals:
            return []
        if self._post is not None or monotonic() - self._sent < GAP:
            return []
        return [signal_document(ready, changed, self._name)]

    def told_inside(self, ready: Collection[str], changed: bool) -> None:
        """A transaction that carried its signal was committed."""
        self._sent = monotonic()
        self._listeners.notify(ready, changed)

    def tell(self, ready: Collection[str], changed: bool) -> None:
        """Something was committed here."""
        if self._closed or not (ready or changed):
            return
        self._listeners.notify(ready, changed)
        if not self._server.address.signals:
            return
        self._ready |= set(ready)
        self._changed |= changed
        if self._post is None:
            self._post = asyncio.create_task(self._send(), name="perdure signals")

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
            self._post = None

    # -- listening -----------------------------------------------------------------------------------
    def listen(
        self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None = None
    ) -> Callable[[], None]:
        listener = Listener(topic, wake, queues)
        self._listeners.add(listener)
        if topic not in self._ears and self._server.address.signals:
            self._start_ear(topic)
        return listener.stop

    def start_anew(self) -> None:
        """The client was replaced: open the change streams on the new one."""
        for topic, ear in list(self._ears.items()):
            ear.cancel()
            self._start_ear(topic)

    def _start_ear(self, topic: Topic) -> None:
        self._ears[topic] = asyncio.create_task(self._hear(topic), name=f"perdure ear for {topic}")

    async def _hear(self, topic: Topic) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                async with await self._stream(topic) as stream:
                    self._tell_all(topic)
                    async for event in stream:
                        self._heard(topic, event["fullDocument"])
                        pause = FIRST_PAUSE
            except Exception as error:
                _log.debug("a change stream broke and is opened again", exc_info=True)
                if pause == LONGEST_PAUSE and not self._told_of_trouble:
                    self._told_of_trouble = True
                    _log.warning("%s; until it does, workers only poll", _trouble(error, self._server))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _stream(self, topic: Topic) -> Any:
        """Only what others say about the topic."""
        others: Document = {
            "operationType": "insert",
            f"fullDocument.{topic}": {"$exists": True},
            "fullDocument.by": {"$ne": self._name},
        }
        pipeline = [{"$match": others}, {"$project": {"fullDocument.ready": 1}}]
        return await self._server.committed[COLLECTION].watch(pipeline, max_await_time_ms=AWAIT)

    def _heard(self, topic: Topic, document: Document) -> None:
        self._listeners.notify(document.get("ready", ()) if topic == "ready" else (), topic == "changed")

    def _tell_all(self, topic: Topic) -> None:
        self._listeners.notify(None if topic == "ready" else (), topic == "changed")

    async def close(self) -> None:
        self._closed = True
        if self._post is not None:
            await asyncio.wait([self._post], timeout=FLUSH)
        tasks = [*self._ears.values(), *([self._post] if self._post is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FLUSH)
        self._ears = {}
        self._listeners.clear()


def _trouble(error: Exception, server: Server) -> str:
    return f"the change stream that carries signals does not open: {explained(error, server.address)}"
