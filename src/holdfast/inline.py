"""Running a task here and now, without a store: `task.run(…)`."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from .clock import reader
from .context import Context, _current
from .job import NewJob, Record, State

if TYPE_CHECKING:
    from .app import Holdfast
    from .task import Definition

_KEPT = frozenset(Record.__struct_fields__) & frozenset(NewJob.__struct_fields__)


async def run_here(app: Holdfast, definition: Definition, job: NewJob) -> Any:
    """Call the handler with the arguments as a worker would pass them: written to JSON and read back."""
    context = Context.detached(app, _running(app, job))
    args, kwargs = definition.arguments(job.payload)
    if definition.takes_context:
        args.insert(0, context)
    token = _current.set(context)
    try:
        if definition.run_in == "thread":
            return await asyncio.to_thread(definition.handler, *args, **kwargs)
        value = definition.handler(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value
    finally:
        _current.reset(token)


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
