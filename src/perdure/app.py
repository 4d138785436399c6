"""The app: a registry of tasks, a client that enqueues, and views on the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from .admin.dead_letters import DeadLetters
from .admin.jobs import Jobs
from .admin.queues import Queues
from .admin.workers import Workers
from .client.app_runtime import AppRuntime
from .client.client import work_of
from .client.handle import JobHandle
from .core.clock import Clock, Duration
from .core.job import ANY, Routing
from .core.validation import MAX_BYTES, check_name
from .core.verb import verb
from .errors import InvalidCall
from .settings import Durability, Thresholds, settings_of
from .tasks.options import TaskDefaults
from .tasks.registry import Registry
from .tasks.task import Call, Task

if TYPE_CHECKING:
    from ._sync import SyncPerdure
    from .admin.schedules import Schedules
    from .flow.graph import Flow, Graph
    from .handler.item import Item
    from .worker.worker import Worker, WorkerSpec

R = TypeVar("R")


class Perdure(Registry):
    """A durable job queue on the store behind a URL. Nothing opens before the first verb.

    >>> from perdure import Perdure
    >>> app = Perdure("memory://")
    >>> @app.task(queue="mail")
    ... async def send(to: str) -> str:
    ...     return f"sent to {to}"
    >>> app.sync.enqueue(send.call("a@b.c")).dropped
    False
    """

    _own_options = ("clock", "durability", "imports", "max_bytes", "migrate", "outbox", "thresholds")

    def __init__(
        self,
        url: str | None = None,
        /,
        *,
        imports: Sequence[str] = (),
        durability: Durability = "normal",
        outbox: str | None = None,
        migrate: bool = True,
        clock: Clock | None = None,
        thresholds: Thresholds = Thresholds(),
        max_bytes: int = MAX_BYTES,
        **defaults: Unpack[TaskDefaults],
    ) -> None:
        super().__init__(**defaults)
        self.settings = settings_of(url, imports, durability, migrate, outbox, clock, thresholds, max_bytes)
        self._runtime = AppRuntime(self)
        self.jobs = Jobs(self._runtime)
        self.dead = DeadLetters(self._runtime)
        self.queues = Queues(self._runtime)
        self.workers = Workers(self._runtime)

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that a worker imports first."""
        return self.settings.imports

    @property
    def clock(self) -> Clock | None:
        """The clock that replaces the store's, in tests."""
        return self.settings.clock

    @property
    def url(self) -> str:
        """The address of its store."""
        return self._runtime.loops.url

    @cached_property
    def schedules(self) -> Schedules:
        """Recurring rules that enqueue."""
        from .admin.schedules import Schedules

        return Schedules(self._runtime)

    @property
    def sync(self) -> SyncPerdure:
        """The blocking forms of its verbs."""
        from ._sync import SyncPerdure

        return SyncPerdure(self)

    @overload
    async def enqueue(self, work: Call[R] | Flow[R], /, *, connection: object = None) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, work: Iterable[Call[R]], /, *, connection: object = None) -> list[JobHandle[R]]: ...
    @overload
    async def enqueue(self, work: Graph, /, *, connection: object = None) -> list[JobHandle[Any]]: ...
    @verb
    async def enqueue(
        self, work: Call[Any] | Flow[Any] | Graph | Iterable[Call[Any]], /, *others: object, connection: object = None
    ) -> JobHandle[Any] | list[JobHandle[Any]]:
        """Enqueue calls. Returns a handle for one call, a list of handles for a list or a graph, that of the last job for
        a flow.

        They are stored in one round trip, all or none up to 500 jobs; above that in chunks, and repeating after an error is
        safe."""
        if others:
            raise InvalidCall(
                "app.enqueue takes one thing; bind arguments by task.call(…), and give several calls in a list"
            )
        calls, order, pick = work_of(work)
        handles: JobHandle[Any] | list[JobHandle[Any]] = pick(
            await self._runtime.client.enqueue(calls, connection, order)
        )
        return handles

    @verb
    async def publish(
        self, topic: str, event: object, /, *, routing_key: str | None = None, connection: object = None
    ) -> list[JobHandle[Any]]:
        """Enqueue a job for each subscription to the topic, all or none, and return their handles."""
        return await self._runtime.client.publish(topic, event, routing_key, connection)

    @verb
    async def signal(self, *queues: str) -> None:
        """Wake workers of these queues, after your own commit on a raw connection."""
        names = [check_name(queue, "queue") for queue in queues]
        await self._runtime.client.signal(names)

    def claim(
        self,
        *,
        tasks: Sequence[str | Task[..., Any]],
        routing_key: Routing = ANY,
        limit: int = 1,
        max_wait: Duration = 0.0,
        lease: Duration | None = None,
    ) -> AbstractAsyncContextManager[list[Item[Any]]]:
        """Pull jobs by hand: `limit` of them, or what there is after `max_wait` seconds. Leases are
        renewed inside; items without an outcome are handed back at the end.

        `async with app.claim(tasks=["embed"], limit=32) as items: …`
        """
        from .worker.pull import Pull

        return Pull(self, tasks, routing_key, limit, max_wait, lease)

    def worker(self, **options: Unpack[WorkerSpec]) -> Worker:
        """A worker in this process: `async with app.worker(concurrency=10): …`."""
        from .worker.worker import Worker

        return Worker(self, **options)

    @verb
    async def migrate(self) -> None:
        """Make or upgrade the tables of its store and of its outbox, at a program's start or in a deploy step. It does so
        with Perdure(migrate=False) too, and again does nothing."""
        await self._runtime.loops.migrate()

    @verb
    async def close(self) -> None:
        """Free the connections of this loop and of the blocking forms. The app may be used again afterwards."""
        from .sync import in_loop_thread

        await self._runtime.loops.close()
        await in_loop_thread(self._runtime.loops.close)

    async def __aenter__(self) -> Self:
        await self._runtime.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Perdure with {len(self.definitions())} task(s)>"

    # -- for the registry ----------------------------------------------------------------------------
    def _app(self) -> Perdure:
        return self

    def _max_bytes(self) -> int:
        return self.settings.max_bytes

    def _spelled(self) -> str:
        return "app"
