"""How a handler is called: its arguments, its context, its first step."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ..context import Context, _current

if TYPE_CHECKING:
    from ..task import Definition


def first_step(definition: Definition, context: Context, payload: str) -> tuple[Coroutine[Any, Any, Any], Any]:
    """Begin a handler in its own context variables: its coroutine and what that waits for. StopIteration carries the
    value of one that never waits."""
    _current.set(context)
    arguments, options = definition.arguments(payload)
    if definition.takes_context:
        coroutine = definition.handler(context, *arguments, **options)
    else:
        coroutine = definition.handler(*arguments, **options)
    return coroutine, coroutine.send(None)


def called(definition: Definition, context: Context, payload: str) -> Any:
    """The value of a handler that blocks; for a thread of its own, with context variables of its own."""
    arguments, options = definition.arguments(payload)
    _current.set(context)
    if definition.takes_context:
        return definition.handler(context, *arguments, **options)
    return definition.handler(*arguments, **options)
