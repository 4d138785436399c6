"""Running a task here and now, without a store: `task.run(…)`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from .around import through
from .clock import reader
from .context import Context, _current
from .job import NewJob, Record, State
from .provide import opened

if TYPE_CHECKING:
    from .app import Holdfast
    from .task import Definition

_KEPT = frozenset(Record.__struct_fields__) & frozenset(NewJob.__struct_fields__)


async def run_here(app: Holdfast, definition: Definition, job: NewJob) -> Any:
    """Call the handler with the arguments as a worker would pass them: written to JSON and read back."""
    context = Context.detached(app, _running(app, job))
    token = _current.set(context)
    try:
        async with AsyncExitStack() as stack:
            context._given = await opened(definition.provided.values(), stack)
            return await through(definition.middleware, context, partial(_called, definition, context, job.payload))
    finally:
        _current.reset(token)


async def _called(definition: Definition, context: Context, payload: str) -> Any:
    args, kwargs = definition.arguments(payload)
    definition.complete(args, kwargs, context.get)
    if definition.takes_context:
        args.insert(0, context)
    if definition.run_in == "thread":
        return await asyncio.to_thread(definition.handler, *args, **kwargs)
    return await definition.handler(*args, **kwargs)


def _running(app: Holdfast, job: NewJob) -> Record:
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
