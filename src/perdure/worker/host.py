"""What a worker or a pull claim uses of the app that it works for.

`app._runtime` is the one private door of an app. `host_of` opens it; everything else in this package goes through the
`WorkerHost` that it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..errors import InvalidCall
from ..storage.contract import Storage

if TYPE_CHECKING:
    from ..core.clock import Clock
    from ..core.record import NewJob, Record
    from ..flow.graph import Flow
    from ..outbox.relay import Relay
    from ..schedules.schedule import Schedule
    from ..tasks.definition import TaskDefinition


class HostApp(Protocol):
    """The app itself, which handlers see as `ctx.app`. (The class is `Perdure`, which this package does not import.)"""

    @property
    def imports(self) -> tuple[str, ...]: ...
    @property
    def clock(self) -> Clock | None: ...
    @property
    def url(self) -> str: ...
    @property
    def settings(self) -> HostSettings: ...
    def definitions(self) -> dict[str, TaskDefinition]: ...


class HostSettings(Protocol):
    @property
    def max_bytes(self) -> int: ...


class LoopShare(Protocol):
    """What an app has in one event loop. Whoever works with its store acquires it first, and releases it in the end."""

    @property
    def storage(self) -> Storage: ...
    def acquire(self) -> None: ...
    async def release(self) -> None: ...


class WorkerHost(Protocol):
    """The inner side of an app, as far as workers use it."""

    @property
    def app(self) -> HostApp: ...

    @property
    def expires(self) -> bool:
        """Whether a job was enqueued here that may expire."""

    @property
    def brief(self) -> bool:
        """Whether a job was enqueued here that is kept for a short time only."""

    @property
    def in_memory(self) -> bool:
        """Whether the store lives in this process alone."""

    async def storage(self) -> Storage:
        """The open store of the running event loop."""

    async def open(self) -> LoopShare:
        """What the app has in the running event loop, opened by the first call."""

    async def write_subscriptions(self, store: Storage) -> None:
        """Put the subscriptions that the code declares on record."""

    def jobs_to_continue(self, flow: Flow[Any], record: Record) -> tuple[NewJob, ...]:
        """The jobs with which a job continues, given the flow that its handler returned."""

    def relay(self) -> Relay | None:
        """A relay for the outbox of the app, if it has one."""

    def declared_schedules(self) -> Mapping[str, Schedule]:
        """The schedules that the code declares, by name."""


def host_of(app: object) -> WorkerHost:
    if not hasattr(app, "_runtime"):
        raise InvalidCall(f"a worker works for an app, Perdure(…), not for {type(app).__name__}")
    return cast("WorkerHost", app._runtime)
