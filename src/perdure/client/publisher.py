"""Publishes events: finds the subscriptions to a topic, and builds a job for each."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from ..core.record import NewJob
from ..flow.subscriptions import (
    Subscription,
    check_address,
    event_text,
    read_subscriptions,
    subscriptions_of,
    write_subscriptions,
)
from ..storage.contract import Storage
from ..tasks.options import JobTemplate

if TYPE_CHECKING:
    from .app_runtime import AppRuntime

_READ_EVERY = 1.0  # seconds for which the list of subscriptions is used again


class Publisher:
    """Knows the subscriptions of the app's own tasks and those that other programs have stored."""

    def __init__(self, runtime: AppRuntime) -> None:
        self._runtime = runtime
        self._read: WeakKeyDictionary[Storage, tuple[float, list[Subscription]]] = WeakKeyDictionary()
        self._written: WeakSet[Storage] = WeakSet()  # stores that have the subscriptions of our tasks

    async def jobs_for(self, topic: str, event: object, routing_key: str | None, *, inside: bool) -> list[NewJob]:
        """A job for each subscription to this event. `inside`: inside a caller's transaction."""
        check_address(topic, routing_key)
        text = event_text(event, self._runtime.app.settings.max_bytes)
        if inside:
            storage = (await self._runtime.loops.get(migrate=False)).storage
        else:
            storage = (await self._runtime.open("publish without connection=tx")).storage
        subscriptions = await self._subscriptions(storage, inside=inside)
        wanted = [each for each in subscriptions if each.wants(topic, routing_key)]
        return [self._job(each, event, text, routing_key) for each in wanted]

    async def write_subscriptions(self, storage: Storage) -> None:
        """Store the subscriptions of the app's own tasks."""
        await write_subscriptions(storage, self._own_subscriptions(), self._runtime.app.definitions())
        self._written.add(storage)

    def forget(self) -> None:
        """Read and write all subscriptions again the next time."""
        self._read.clear()
        self._written.clear()

    def _job(self, subscription: Subscription, event: object, text: str, routing_key: str | None) -> NewJob:
        definition = self._runtime.app.definitions().get(subscription.task)
        if definition is None:
            return subscription.job(text, routing_key)
        plan = JobTemplate(definition.name, {**definition.options, "routing_key": routing_key})
        return plan.job(definition.payload((event,), {}), definition.arguments_hash)

    async def _subscriptions(self, storage: Storage, *, inside: bool) -> list[Subscription]:
        """Our own subscriptions and the stored ones of others, which are read at most once a second. Ours are stored first,
        but not from inside a caller's transaction, which may have locked the store."""
        if not inside and storage not in self._written:
            await self.write_subscriptions(storage)
        read_at, stored = self._read.get(storage, (0.0, []))
        if not stored or monotonic() - read_at > _READ_EVERY:
            stored = await read_subscriptions(storage)
            self._read[storage] = (monotonic(), stored)
        own_tasks = self._runtime.app.definitions()
        return [*self._own_subscriptions(), *(each for each in stored if each.task not in own_tasks)]

    def _own_subscriptions(self) -> list[Subscription]:
        definitions = self._runtime.app.definitions()
        plans = {each.name: JobTemplate(each.name, each.options) for each in definitions.values() if each.subscriptions}
        return subscriptions_of(definitions, plans)
