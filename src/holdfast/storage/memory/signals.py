"""Wake-ups between the loops of one process."""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Collection

from holdfast.storage.contract import Topic


class Listener:
    """Calls `wake` in the thread of its loop; calls that have not come through yet are not repeated."""

    def __init__(self, topic: Topic, wake: Callable[[], None], queues: frozenset[str] | None) -> None:
        self._loop: AbstractEventLoop = get_running_loop()
        self._topic = topic
        self._wake = wake
        self._queues = queues
        self._under_way = False
        self.stopped = False

    def tell(self, ready: Collection[str], changed: bool) -> None:
        if self._under_way or not self._concerned(ready, changed):
            return
        self._under_way = True
        try:
            self._loop.call_soon_threadsafe(self._come_through)
        except RuntimeError:  # its loop is closed
            self.stopped = True

    def stop(self) -> None:
        self.stopped = True

    def _concerned(self, ready: Collection[str], changed: bool) -> bool:
        if self._topic == "changed":
            return changed
        return bool(ready) if self._queues is None else any(queue in self._queues for queue in ready)

    def _come_through(self) -> None:
        self._under_way = False
        if not self.stopped:
            self._wake()
