"""Huey on any of its storages."""

from abc import abstractmethod
from functools import cached_property
from typing import Any

from .contender import SLOTS, BlockingContender, Mode, blocking_handler
from .probe import Probe


class HueyContender(BlockingContender):
    module = "huey"
    distribution = "huey"
    modes = frozenset({"loop", "io"})
    # What the consumer is told beside the number of its threads.
    consumer: dict[str, Any] = {}

    @property
    @abstractmethod
    def queue(self) -> Any: ...

    @cached_property
    def _send_task(self) -> Any:
        return self._task(Probe(0), "loop")

    def _task(self, probe: Probe, mode: Mode) -> Any:
        handle = blocking_handler(probe, mode)

        def noop(text: str) -> None:
            handle(text)

        return self.queue.task(name="noop")(noop)

    def put(self, text: str) -> None:
        self._send_task(text)

    def waiting(self) -> int:
        return int(self.queue.storage.queue_size())

    def completed(self) -> int | None:
        return None

    def work(self, probe: Probe, mode: Mode) -> None:
        self._task(probe, mode)
        consumer = self.queue.create_consumer(workers=SLOTS if mode == "io" else 1, **self.consumer)
        consumer.start()
        probe.ready()
        probe.settle(self.completed)
        consumer.stop(graceful=True)
