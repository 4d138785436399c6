"""A task as one app knows it: its name there, its handler, its options, and how its arguments and results are read."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..core.encoding import codec
from ..core.job import Routing
from ..core.limit import limits_of
from ..errors import InvalidCall
from ..observe import log
from .arguments import Arguments
from .middleware import Middleware, prepare_middleware
from .options import JobTemplate, RetryOn
from .providers import PROVIDED, Provider, is_kind, names_of
from .signature import BatchHandler, Handler

if TYPE_CHECKING:
    from types import FrameType

    from ..app import Perdure
    from ..client.client import Client
    from ..core.record import NewJob
    from ..handler.context import Context
    from .registry import Registry


class BatchOptions(NamedTuple):
    """How many jobs a batch has at most, and how many seconds it waits for that many."""

    size: int
    wait: float


class TaskDefinition:
    """A task as one app knows it: what a worker needs to run its jobs."""

    def __init__(
        self,
        declared: TaskDeclaration,
        name: str,
        aliases: tuple[str, ...],
        options: Mapping[str, Any],
        max_bytes: int,
        middleware: tuple[Middleware, ...] = (),
        provided: Mapping[type[Any], Provider] = {},
    ) -> None:
        self.name = name
        self.aliases = aliases
        self.options = options
        self.max_bytes = max_bytes
        self.identity = declared.identity
        self.takes_context: bool = declared.shape.takes_context
        self.is_async: bool = declared.shape.is_async
        wanted = options.get("run_in", "auto")
        if (
            declared.batch is not None and wanted == "process"
        ):  # a default for all tasks; as an option of this one it would be refused
            wanted = "auto"
        self.run_in: Literal["loop", "thread", "process"] = _run_in(name, wanted, self.is_async)
        self.handler = (
            _as_coroutine_function(declared.handler)
            if self.run_in == "loop" and not self.is_async
            else declared.handler
        )
        self.concurrency: int | None = options.get("concurrency")
        if self.concurrency is None and self.run_in == "process":
            self.concurrency = os.cpu_count() or 1  # more processes than that help nobody
        self.middleware = middleware
        self.provided = provided
        self.per_job = tuple(provider for provider in provided.values() if provider.scope == "job")
        self.batch = declared.batch
        self.surrounded = bool(middleware or self.per_job)
        # all that is around it, of a handler in the loop: it is wrapped in these for every attempt
        self.skins = prepare_middleware(middleware) if self.run_in == "loop" and not self.per_job else ()
        # no middleware, and nothing provided
        self.plain = not (middleware or provided or declared.asks or declared.batch)
        self.plain_on_loop = self.plain and self.run_in == "loop"
        # a thread is all it needs
        self.in_thread = self.run_in == "thread" and not self.surrounded and declared.batch is None
        self.rated = any(limit.rate is not None for limit in limits_of(options.get("limit")))  # its starts are counted
        self._retry_on: RetryOn = options.get("retry_on")
        self.subscriptions = declared.subscriptions
        self.injected = declared.injected(provided)
        self._arguments = declared.arguments_without(self.injected)
        # the payload of a call, checked against the annotations. InvalidCall names what is wrong
        self.payload: Callable[[tuple[Any, ...], dict[str, Any]], str] = partial(
            self._arguments.payload, name, max_bytes
        )
        # the arguments of a stored call, without ctx. InvalidCall when the payload does not fit the handler
        self.arguments: Callable[[str], tuple[Sequence[Any], dict[str, Any]]] = partial(self._arguments.read, name)

    @property
    def first_parameter(self) -> str | None:
        """The name of what a result or an event is handed to."""
        return self._arguments.first

    @property
    def others(self) -> str | None:
        """The name of the parameter that takes options by any name: `**others`."""
        return self._arguments.others

    def partly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Some of a call's arguments by parameter name, their kinds unchecked."""
        return self._arguments.partly(self.name, args, kwargs)

    def named(self, payload: str) -> dict[str, Any]:
        """The arguments of a stored call by parameter name, defaults filled in."""
        return self._arguments.named(self.name, payload)

    def complete(self, arguments: Sequence[Any], options: dict[str, Any], context: Context) -> Sequence[Any]:
        """The positional arguments of the handler: these, what is provided, and the context if the handler takes one. What
        is provided by name is added to `options`."""
        if self.injected:
            arguments = self._inject(arguments, options, context.get)
        return (context, *arguments) if self.takes_context else arguments

    def _inject(
        self, arguments: Sequence[Any], options: dict[str, Any], get: Callable[[type[Any]], Any]
    ) -> Sequence[Any]:
        whole = list(arguments)
        for name, (place, kind) in self.injected.items():
            if place is None:
                options[name] = get(kind)
            else:
                whole.insert(place, get(kind))
        return whole

    def check_provided(self) -> None:
        """InvalidCall when a parameter is to be filled in and nothing is provided for it."""
        for name, (_, kind) in self.injected.items():
            if kind not in self.provided:
                raise InvalidCall(
                    f"task {self.name}: nothing of kind {getattr(kind, '__qualname__', kind)} is provided for its "
                    f"parameter {name!r}; provided: {names_of(self.provided)}. Declare it: app.provide(Kind, make)"
                )

    def arguments_hash(self, payload: str) -> str:
        """What is the same for equal calls of this task: SHA-256 of its name and the payload, defaults filled in."""
        return hash_of_arguments(self.name, self._arguments.fill_defaults(self.name, payload))

    def defaults_text(self) -> str:
        """The defaults of its arguments, as far as they count in `arguments_hash`."""
        return self._arguments.defaults_text()

    def check_handed(self, what: str) -> None:
        """InvalidCall when it needs more than its first argument, which is all that it is handed."""
        if others := self._arguments.needed_beside_first():
            raise InvalidCall(f"{self.name} is handed {what} and nothing else, and needs {', '.join(others)} too")

    def encode_result(self, value: Any) -> str | None:
        """A handler's value as JSON text; None stays None. InvalidCall when it cannot be stored."""
        return None if value is None else codec.encode(value, f"the result of {self.name}", self.max_bytes)

    def decode_result(self, text: str | None) -> Any:
        """A stored result as the return annotation says; InvalidCall for one that does not fit it."""
        return None if text is None else self._arguments.result(self.name, text)

    def result_of(self, text: str | None) -> Any:
        """The result of a job that has succeeded, whatever it returned: plain, where it does not fit the annotation."""
        try:
            return self.decode_result(text)
        except Exception as unfit:  # types of the user's making may raise anything
            log.result_does_not_fit(self.name, unfit)
            return None if text is None else codec.decode(text)

    @cached_property
    def retries_timeouts(self) -> bool:
        """Whether a timeout is worth another attempt, for whoever ends the attempt from outside its process."""
        return self.retries(TimeoutError("the attempt took longer than its timeout"))

    def retries(self, error: BaseException) -> bool:
        """Whether this failure is worth another attempt (`retry_on`). A predicate that raises counts as yes."""
        judge = self._retry_on
        if judge is None:
            return True
        if isinstance(judge, type | tuple):
            return isinstance(error, judge)
        try:
            return bool(judge(error))
        except Exception as broke:
            log.retry_on_broke(self.name, broke)
            return True


def hash_of_arguments(task: str, filled: bytes) -> str:
    """What is the same for equal calls: of the task's name and its arguments, sorted, defaults filled in."""
    return hashlib.sha256(task.encode() + b"\0" + filled).hexdigest()


class TaskDeclaration:
    """A task as it was declared, before any app knows it. Equal identity (module and qualified name) replaces."""

    def __init__(
        self,
        registry: Registry,
        handler: Callable[..., Any],
        name: str,
        aliases: tuple[str, ...],
        options: Mapping[str, Any],
        frame: FrameType | None,
        batch: BatchOptions | None = None,
    ) -> None:
        self.registry = registry
        self.handler = handler
        self.name = name
        self.aliases = aliases
        self.options = options
        self.subscriptions: list[tuple[str, Routing]] = []  # topics, and the routing keys of their events
        self.batch = batch
        self.shape = Handler(handler, name, frame) if batch is None else BatchHandler(handler, name, frame)
        self.asks = any(parameter.default is PROVIDED for parameter in self.shape.parameters)
        self._arguments: dict[frozenset[str], Arguments] = {}
        if batch is not None and options.get("run_in") == "process":
            raise InvalidCall(
                f'batch task {name}: its handler runs in the loop or in a thread, not with run_in="process"'
            )
        _run_in(name, options.get("run_in", "auto"), self.shape.is_async)
        self.identity = (
            name,
            getattr(handler, "__module__", None),
            getattr(handler, "__qualname__", type(handler).__qualname__),
        )

    def injected(self, provided: Mapping[type[Any], Provider]) -> dict[str, tuple[int | None, type[Any]]]:
        """The parameters that are no part of the payload: by name, their place among the positional ones (None: by name)
        and their kind."""
        if not provided and not self.asks:
            return {}
        injected: dict[str, tuple[int | None, type[Any]]] = {}
        for number, parameter in enumerate(self.shape.parameters):
            try:
                hint = self.shape.hint(parameter.name)
            except InvalidCall:  # raised again where the hint is used
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if is_kind(hint, provided) or parameter.default is PROVIDED:
                injected[parameter.name] = (None if parameter.kind is parameter.KEYWORD_ONLY else number, hint)
        return injected

    def arguments_without(self, injected: Collection[str]) -> Arguments:
        """How the payload is written and read."""
        left_out = frozenset(injected)
        if left_out not in self._arguments:
            self._arguments[left_out] = Arguments(self.shape, left_out)
        return self._arguments[left_out]


class TaskBinding(NamedTuple):
    """A task bound to an app: what its verbs use. It holds as long as `generation` is the current one."""

    generation: int
    app: Perdure
    client: Client
    definition: TaskDefinition
    plan: JobTemplate

    def job(self, payload: str) -> NewJob:
        """The job of a call with this payload."""
        return self.plan.job(payload, self.definition.arguments_hash)


_generation = 0


def generation() -> int:
    """A number that rises whenever a registry changes. What was looked up before is looked up again then."""
    return _generation


def start_generation() -> None:
    """A registry has changed."""
    global _generation
    _generation += 1


def _as_coroutine_function(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A `def` handler that is to run in the loop, as a coroutine function."""

    async def run(*args: Any, **kwargs: Any) -> Any:
        value = handler(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return run


def _run_in(task: str, wanted: str, is_async: bool) -> Literal["loop", "thread", "process"]:
    if wanted == "process":
        return "process"
    if wanted == "auto":
        return "loop" if is_async else "thread"
    if wanted == "thread" and is_async:
        raise InvalidCall(f'task {task}: an `async def` handler runs in the loop, not with run_in="thread"')
    return "loop" if wanted == "loop" else "thread"
