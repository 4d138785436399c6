"""Assert that jobs were or were not enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.admin.filters import pages
from perdure.core.encoding import codec
from perdure.core.job import Job
from perdure.core.record import Record, job_of
from perdure.storage.contract import Filter
from perdure.tasks.definition import TaskDefinition
from perdure.tasks.task import Task

from .app_runtime import runtime_of
from .sync_or_async import either

if TYPE_CHECKING:
    from perdure.app import Perdure

_COMPARED = ("queue", "priority", "key", "tenant", "routing_key", "tags", "meta", "max_attempts", "timeout")


@either
async def assert_enqueued(app: Perdure, task: Task[..., Any] | str, /, *args: object, **kwargs: object) -> list[Job]:
    """Assert that a job of this task with at least these arguments (defaults included) is stored. Return all that match,
    newest first.

    Options are compared if you pass a task with options: `assert_enqueued(app, send.using(queue="bulk"), "a@b.c")`. Await
    it in an `async def` test; call it in a plain one.
    """
    fitting, others = await _search(app, task, args, kwargs)
    if not fitting:
        raise AssertionError(_message(f"no job was enqueued that fits {_describe_call(task, args, kwargs)}", others))
    return fitting


@either
async def refute_enqueued(app: Perdure, task: Task[..., Any] | str, /, *args: object, **kwargs: object) -> None:
    """Assert that no job of this task with these arguments is stored."""
    fitting, _ = await _search(app, task, args, kwargs)
    if fitting:
        raise AssertionError(_message(f"a job was enqueued that fits {_describe_call(task, args, kwargs)}", fitting))


async def _search(
    app: Perdure, task: Task[..., Any] | str, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[list[Job], list[Job]]:
    name = task if isinstance(task, str) else app._bind(task._declared, task._options).definition.name
    options = {} if isinstance(task, str) else task._options
    definition = app.definitions().get(name)
    expected: dict[str, Any] = dict(kwargs) if definition is None else definition.partly(args, kwargs)
    arguments = codec.decode(codec.encode(expected, "the arguments"))
    fitting: list[Job] = []
    others: list[Job] = []
    async for records in pages(await runtime_of(app).storage(), Filter(task=name)):
        for record in records:
            (fitting if _fits(record, definition, arguments, options) else others).append(job_of(record))
    return fitting, others


def _fits(
    record: Record, definition: TaskDefinition | None, arguments: dict[str, Any], options: dict[str, Any]
) -> bool:
    payload = codec.decode(record.payload)
    if definition is not None:
        payload = codec.decode(definition.defaults_text()) | payload
        payload, arguments = _flat(payload, definition.others), _flat(arguments, definition.others)
    job = job_of(record)
    return all(name in payload and payload[name] == value for name, value in arguments.items()) and all(
        _same(getattr(job, name), options[name]) for name in _COMPARED if name in options
    )


def _flat(arguments: dict[str, Any], others: str | None) -> dict[Any, Any]:
    """The arguments with those of `**others` one by one, so that each can be compared alone."""
    if others not in arguments:
        return arguments
    extra = {(others, name): value for name, value in arguments[others].items()}
    return {name: value for name, value in arguments.items() if name != others} | extra


def _same(stored: object, wanted: Any) -> bool:
    if isinstance(stored, tuple):
        return set(wanted) <= set(stored)
    return bool(stored == (wanted.total_seconds() if hasattr(wanted, "total_seconds") else wanted))


def _describe_call(task: Task[..., Any] | str, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    name = task if isinstance(task, str) else task.name
    return f"{name}({', '.join([*map(repr, args), *(f'{key}={value!r}' for key, value in kwargs.items())])})"


def _message(what: str, jobs: list[Job]) -> str:
    shown = "".join(f"\n  {job.task} {job.payload} queue={job.queue} {job.state}" for job in jobs[:10])
    return f"{what}; on record of this task:{shown or ' nothing'}"
