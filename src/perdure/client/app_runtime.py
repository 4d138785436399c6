"""The private side of an app, for the other packages of Perdure.

`app._runtime` is the only private name of an app that is used outside `app.py`. It opens the store of an event loop,
enqueues jobs, and builds what a worker needs: the relay of the app's outbox and the schedules that its code declares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import Client
from .current_handler import refuse_in_transaction
from .runtime import LoopRuntime, LoopRuntimes

if TYPE_CHECKING:
    from ..app import Perdure
    from ..core.record import NewJob, Record
    from ..flow.graph import Flow
    from ..outbox.relay import Relay
    from ..schedules.schedule import Schedule
    from ..storage.contract import Storage


class AppRuntime:
    """What runs behind one app. `expires` and `brief` say whether a job was enqueued here that may expire, or that is kept
    for a short time only: upkeep looks for such jobs more often."""

    def __init__(self, app: Perdure) -> None:
        self.app = app
        self.loops = LoopRuntimes(app.settings)
        self.client = Client(self)
        self.expires = False
        self.brief = False

    @property
    def in_memory(self) -> bool:
        """Whether the store lives in this process alone."""
        return self.loops.in_memory

    async def storage(self) -> Storage:
        """The open store of the running event loop."""
        return (await self.open()).storage

    async def open(self, what: str = "a verb of the app") -> LoopRuntime:
        """What belongs to the running event loop, opened by the first who asks. `what` names the verb in an error."""
        return self.here(what) or await self.loops.get()

    def here(self, what: str) -> LoopRuntime | None:
        """What belongs to the running event loop, if it is open."""
        refuse_in_transaction(what)
        return self.loops.here()

    async def write_subscriptions(self, store: Storage) -> None:
        """Put the subscriptions that the code declares on record."""
        await self.client.publisher.write_subscriptions(store)

    def jobs_to_continue(self, flow: Flow[Any], record: Record) -> tuple[NewJob, ...]:
        """The jobs with which a job continues, given the flow that its handler returned."""
        return self.client.jobs_to_continue(flow, record)

    def relay(self) -> Relay | None:
        """A relay that moves jobs from the app's outbox to its store, if the app has an outbox."""
        if self.loops.outboxes is None:
            return None
        from ..outbox.relay import Relay

        return Relay(self.loops.outboxes.get, self.storage)

    def declared_schedules(self) -> dict[str, Schedule]:
        """The schedules that are declared in code, by name."""
        from ..schedules.declaration import declared_schedules

        return declared_schedules(self.app)
