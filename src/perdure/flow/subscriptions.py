"""Events: one job for each subscription to a topic.

Subscriptions are kv entries of the store, so that a publisher need not know its subscribers. Workers store those of their
tasks when they start, and a program that publishes stores its own before its first event. Each is a consumer group of its
own: its job has its own retries and its own end. An event without subscribers makes no job; a later subscriber gets what
is published from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.encoding.codec import decode, encode, sorted_text
from ..core.ids import new_id
from ..core.job import ANY, Routing
from ..core.record import NewJob
from ..core.validation import check_name
from ..errors import InvalidCall
from ..storage.contract import KvWrite, Storage
from ..tasks.definition import hash_of_arguments
from ..tasks.options import JobTemplate, unique_text
from .build_jobs import with_argument
from .kept_texts import read_or_log

if TYPE_CHECKING:
    from ..tasks.definition import TaskDefinition

KIND = "subscription"
MOST = 100_000
SEPARATOR = "\x1f"  # never in a name


class Subscription(msgspec.Struct, frozen=True):
    """A task that wants the events of a topic. `routing`: of these alone; None with `any_routing` for all. `defaults`: those
    of its other arguments, if equal events are to be one job."""

    topic: str
    task: str
    parameter: str
    template: NewJob
    any_routing: bool = True
    routing: str | None = None
    defaults: str | None = None

    @property
    def name(self) -> str:
        routing = "any" if self.any_routing else "none" if self.routing is None else f"={self.routing}"
        return SEPARATOR.join((self.topic, self.task, routing))

    def wants(self, topic: str, routing_key: str | None) -> bool:
        return self.topic == topic and (self.any_routing or self.routing == routing_key)

    def job(self, event: str, routing_key: str | None) -> NewJob:
        """Its job for an event, a JSON text."""
        payload = with_argument("{}", self.parameter, event)
        template = self.template
        if self.defaults is not None:
            filled = sorted_text(decode(self.defaults) | {self.parameter: decode(event)})
            key = unique_text(template.task, template.tenant, hash_of_arguments(template.task, filled))
            template = msgspec.structs.replace(template, unique_key=key)
        return msgspec.structs.replace(template, id=new_id(), payload=payload, routing_key=routing_key)


def check_address(topic: str, routing_key: str | None) -> None:
    """What an event is published under."""
    check_name(topic, "topic")
    if routing_key is not None:
        check_name(routing_key, "routing_key")


def subscriptions_of(definitions: Mapping[str, TaskDefinition], plans: Mapping[str, JobTemplate]) -> list[Subscription]:
    """What the tasks of an app have subscribed to."""
    found = []
    for definition in {each.name: each for each in definitions.values()}.values():
        for topic, routing in definition.subscriptions:
            found.append(_subscription(definition, topic, routing, plans[definition.name]))
    return found


def _subscription(definition: TaskDefinition, topic: str, routing: Routing, plan: JobTemplate) -> Subscription:
    if definition.first_parameter is None:
        raise InvalidCall(f"{definition.name} subscribes to {topic!r} and must take the event as its first argument")
    definition.check_handed(f"the events of {topic!r}")
    key = None if routing is ANY else routing
    defaults = definition.defaults_text() if plan.hashes_arguments else None
    return Subscription(
        topic, definition.name, definition.first_parameter, plan.template, routing is ANY, key, defaults
    )


async def write_subscriptions(storage: Storage, subscriptions: Iterable[Subscription], known: Iterable[str]) -> None:
    """Write subscriptions, and remove those that a known task no longer has."""
    wanted = {each.name: encode(msgspec.to_builtins(each), "a subscription") for each in subscriptions}
    tasks = set(known)
    there = {row.name: row.text for row in await storage.kv_read(KIND, limit=MOST)}
    writes = [KvWrite(KIND, name, text) for name, text in wanted.items() if there.get(name) != text]
    gone = [name for name in there if name not in wanted and not tasks.isdisjoint(name.split(SEPARATOR)[1:2])]
    writes += [KvWrite(KIND, name, None) for name in gone]
    if writes:
        await storage.kv_write(writes)


async def read_subscriptions(storage: Storage) -> list[Subscription]:
    """All subscriptions, whoever made them."""
    rows = await storage.kv_read(KIND, limit=MOST)
    return [subscription for row in rows if (subscription := read_or_log(row, Subscription)) is not None]


def event_text(event: Any, limit: int) -> str:
    return encode(event, "the event", limit)
