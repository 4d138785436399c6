"""The decorators that make tasks, with a type for every kind of handler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from ..errors import InvalidCall
from .definition import BatchOptions
from .options import TaskOptions, check_task_options
from .task import Task

if TYPE_CHECKING:
    from ..handler.context import Context
    from ..handler.item import Item
    from .registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class _Nobody: ...


class TaskMaker:
    """The decorator `@app.task`, bare or with options."""

    def __init__(self, registry: Registry, options: Mapping[str, Any]) -> None:
        self._registry = registry
        self._options = options

    # The first overload takes handlers whose first parameter says nothing about its type.
    @overload
    def __call__(
        self, handler: Callable[Concatenate[_Nobody, P], Coroutine[Any, Any, R]], /
    ) -> Task[Concatenate[Any, P], R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[_Nobody, P], R], /) -> Task[Concatenate[Any, P], R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, **options: Unpack[TaskOptions]) -> TaskMaker: ...
    def __call__(self, *handlers: Any, **options: Any) -> Any:
        if not handlers:
            return TaskMaker(self._registry, {**self._options, **check_task_options(options, "@task")})
        if options or len(handlers) > 1:
            raise InvalidCall("@task takes its options first: app.task(name=…)(handler)")
        (handler,) = handlers
        if isinstance(handler, Task):
            raise InvalidCall(f"{handler!r} is a task already")
        if isinstance(handler, str):
            raise InvalidCall(
                f'a task is made of a function, not of str; options go by name: @app.task(name="{handler}")'
            )
        return self._registry._declare(handler, self._options, sys._getframe(1))


class BatchMaker:
    """The decorator `@app.batch_task(size=…)`."""

    def __init__(self, registry: Registry, options: Mapping[str, Any], batch: BatchOptions) -> None:
        self._registry = registry
        self._options = options
        self._batch = batch

    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], Coroutine[Any, Any, None]], /) -> Task[[A], None]: ...
    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], Coroutine[Any, Any, list[R]]], /) -> Task[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], None], /) -> Task[[A], None]: ...
    @overload
    def __call__(self, handler: Callable[[list[Item[A]]], list[R]], /) -> Task[[A], R]: ...
    def __call__(self, handler: Any, /) -> Any:
        if isinstance(handler, Task):
            raise InvalidCall(f"{handler!r} is a task already")
        return self._registry._declare(handler, self._options, sys._getframe(1), self._batch)
