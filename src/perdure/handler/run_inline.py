"""Running a task here and now, without a store: `task.run(…)`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..client.call_list import bound_to
from ..core.clock import reader
from ..core.job import State
from ..core.outcome import Outcome
from ..core.record import NewJob, Record
from ..errors import ArgumentsDoNotFit, InvalidCall
from ..flow.build_jobs import with_argument
from ..flow.graph import Continuing, Plan, PlannedCall
from ..tasks.middleware import call_through
from ..tasks.providers import open_all
from .context import Context, DetachedBackend, _current
from .context_access import provide, provide_items, set_parents
from .item import BatchContext, Item, results_of

if TYPE_CHECKING:
    from ..app import Perdure
    from ..tasks.definition import TaskBinding, TaskDefinition

_KEPT = frozenset(Record.__struct_fields__) & frozenset(NewJob.__struct_fields__)


Parents = tuple[tuple[str, str | None], ...]  # task and result, as JSON text


async def run_inline(app: Perdure, definition: TaskDefinition, job: NewJob, parents: Parents = ()) -> Any:
    """Call the handler with the arguments as a worker would pass them: written to JSON and read back. What it continues
    with is run too, one call after the other, and the result is that of the last."""
    value = await _run_one(app, definition, job, parents)
    while isinstance(value, Continuing):
        plan = value.flow._plan
        value = await (_run_group(app, plan) if plan.many else _run_in_order(app, plan))
    return value


async def _run_group(app: Perdure, plan: Plan) -> list[Any]:
    """Run the calls of a group, one after the other, and return their results."""
    values = []
    for planned in plan.calls:
        bound, job, parents = _prepare(app, planned, {})
        values.append(await run_inline(app, bound.definition, job, parents))
    return values


async def _run_in_order(app: Perdure, plan: Plan) -> Any:
    """Run the calls of a flow. Returns the value of the last handler, which may continue in its turn."""
    results: dict[PlannedCall, tuple[str, str | None]] = {}
    *before, last = plan.calls
    for planned in before:
        bound, job, parents = _prepare(app, planned, results)
        value = await run_inline(app, bound.definition, job, parents)
        results[planned] = (job.task, bound.definition.encode_result(value))
    bound, job, parents = _prepare(app, last, results)
    return await _run_one(app, bound.definition, job, parents)


def _prepare(
    app: Perdure, planned: PlannedCall, results: Mapping[PlannedCall, tuple[str, str | None]]
) -> tuple[TaskBinding, NewJob, Parents]:
    """The job of a call of a flow, and the results of those before it."""
    call = planned.call
    bound = bound_to(app, call)
    parents = tuple(results[parent] for parent in planned.after)
    job = bound.job(call._payload)
    if planned.takes is None:
        return bound, job, parents
    texts = [text or "null" for _, text in parents]
    value = f"[{','.join(texts)}]" if planned.takes == "list" else texts[0]
    payload = with_argument(job.payload, call._task._first_parameter(), value)
    return bound, msgspec.structs.replace(job, payload=payload), parents


async def _run_one(app: Perdure, definition: TaskDefinition, job: NewJob, parents: Parents) -> Any:
    if definition.batch is not None:
        return await _run_batch(app, definition, job, parents)
    context = Context.detached(app, _running(app, job))
    set_parents(context, parents)
    token = _current.set(context)
    try:
        async with AsyncExitStack() as stack:
            provide(context, await open_all(definition.provided.values(), stack))
            return await call_through(
                definition.middleware, context, partial(_call_with_payload, definition, context, job.payload)
            )
    finally:
        _current.reset(token)


def _arguments(definition: TaskDefinition, payload: str) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments of a call. A handler may make this call: if they do not fit, that says nothing about its own job."""
    try:
        return definition.arguments(payload)
    except ArgumentsDoNotFit as error:
        raise InvalidCall(*error.args) from None


async def _call_with_payload(definition: TaskDefinition, context: Context, payload: str) -> Any:
    arguments, options = _arguments(definition, payload)
    return await _call(definition, context, arguments, options)


async def _call(definition: TaskDefinition, context: Context, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    arguments = definition.complete(arguments, options, context)
    if definition.run_in == "loop" or definition.is_async:
        return await definition.handler(*arguments, **options)
    return await asyncio.to_thread(definition.handler, *arguments, **options)


async def _run_batch(app: Perdure, definition: TaskDefinition, job: NewJob, parents: Parents) -> Any:
    """A batch of one."""
    last = _LastOutcome()
    (args,), _ = _arguments(definition, job.payload)
    item: Item[Any] = Item(app, _running(app, job), "here", DetachedBackend(), None, last, args)
    set_parents(item, parents)
    context = BatchContext([item])
    token = _current.set(context)
    try:
        async with AsyncExitStack() as stack:
            provide(context, await open_all(definition.provided.values(), stack))
            provide_items(context)
            value = await call_through(definition.middleware, context, partial(_call, definition, item, [[item]], {}))
    finally:
        _current.reset(token)
    if last.outcome is not None:
        raise last.outcome
    return last.value if last.is_reported else results_of(definition.name, [item], value)[0]


class _LastOutcome:
    is_reported = False
    value: object = None
    outcome: Outcome | None = None

    async def report(self, item: Item[Any], value: object, outcome: Outcome | None) -> None:
        self.is_reported, self.value, self.outcome = True, value, outcome


def _running(app: Perdure, job: NewJob) -> Record:
    now = reader(app.clock)()
    kept = {name: value for name, value in msgspec.structs.asdict(job).items() if name in _KEPT}
    return Record(
        **kept,
        state=State.RUNNING,
        rank=now,
        version=1,
        attempt=1,
        failures=0,
        losses=0,
        created_at=now,
        run_at=now,
        started_at=now,
    )
