"""`app.worker()`: a worker in this process. Its parts are in `session.py`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypedDict

from ..core.clock import SECOND, Duration, micros_of
from ..core.ids import new_id
from ..core.job import ANY, Routing
from ..core.validation import check_name, check_names, check_routing
from ..core.verb import needs_loop
from ..errors import InvalidCall
from ..tasks.definition import TaskDefinition
from ..tasks.task import Task
from .control import WorkerControl
from .host import host_of
from .lifetime import Lifetime
from .options import WorkerOptions, checked_sizes


class WorkerSpec(TypedDict, total=False):
    """The options of a worker."""

    queues: Sequence[str] | None
    tasks: Sequence[str | Task[..., Any]] | None
    routing_key: Routing
    concurrency: int
    batch_size: Mapping[str, int]
    name: str
    poll: Duration | None
    grace: Duration
    unknown: Literal["leave", "fail"]


class App(Protocol):
    """The app that a worker works for."""

    @property
    def imports(self) -> tuple[str, ...]: ...
    def definitions(self) -> dict[str, TaskDefinition]: ...


class Worker(Lifetime):
    """Claims and runs jobs in this process.

    `async with app.worker(): …`, or `await worker.run()` until SIGTERM or SIGINT.
    """

    refused: ClassVar[str | None] = None  # why no worker may start in this process

    def __init__(
        self,
        app: App,
        /,
        *,
        queues: Sequence[str] | None = None,
        tasks: Sequence[str | Task[..., Any]] | None = None,
        routing_key: Routing = ANY,
        concurrency: int = 50,
        batch_size: Mapping[str, int] | None = None,
        name: str | None = None,
        poll: Duration | None = None,
        grace: Duration = 30.0,
        unknown: Literal["leave", "fail"] = "leave",
        **mistaken: object,
    ) -> None:
        host = host_of(app)
        if mistaken:
            known = ", ".join(WorkerSpec.__annotations__)
            raise InvalidCall(f"a worker has no option {', '.join(mistaken)}; it has {known}")
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidCall(f"concurrency must be a whole number of at least 1, it is {concurrency!r}")
        if unknown not in ("leave", "fail"):
            raise InvalidCall(f'unknown must be "leave" or "fail", it is {unknown!r}')
        options = WorkerOptions(
            queues=None if queues is None else check_names(queues, "queues"),
            asked_tasks=None if tasks is None else check_names(tasks, "tasks"),
            routing=check_routing(routing_key),
            concurrency=concurrency,
            batch_size=checked_sizes(batch_size),
            poll=1.0 if poll is None else micros_of(poll, "poll", positive=True) / SECOND,
            grace=micros_of(grace, "grace") / SECOND,
            unknown=unknown,
            id=_new_name() if name is None else check_name(name, "name"),
        )
        super().__init__()
        self.id = options.id
        self._control = WorkerControl(host, options)

    def __repr__(self) -> str:
        return f"<Worker {self.id} {'at work' if self._control.session else 'stopped'}>"

    @needs_loop
    async def start(self) -> None:
        """Begin to claim. Refuses to start without tasks."""
        if self.refused is not None and self._control.session is None:
            raise InvalidCall(self.refused)
        self._stopped.clear()
        await self._control.start()

    async def _stop(self, hurry: asyncio.Event) -> None:
        await self._control.stop(hurry)
        self._stopped.set()


def control_of(worker: Worker) -> WorkerControl:
    """The inner side of a worker, for the rest of Perdure."""
    return worker._control


def _new_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{new_id()[-6:]}"
