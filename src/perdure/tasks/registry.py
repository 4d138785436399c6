"""Registries: tasks by name. An app is one; a library has one of its own, which apps include."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from weakref import ref

from ..core.clock import SECOND, Duration, micros_of, reader
from ..core.job import ANY, Routing
from ..core.validation import MAX_BYTES, NAME_BYTES, check_name, check_routing
from ..errors import DuplicateTask, InvalidCall, NoApp
from .decorators import BatchMaker, TaskMaker
from .definition import BatchOptions, TaskBinding, TaskDeclaration, TaskDefinition, generation, start_generation
from .middleware import Middleware, check_middleware
from .not_released import NotReleased
from .options import JobTemplate, TaskDefaults, TaskOptions, check_defaults, check_size, check_task_options
from .providers import Provider, Scope
from .task import Call, Task

if TYPE_CHECKING:
    from ..app import Perdure
    from ..schedules.declaration import ScheduleDeclaration

T = TypeVar("T")


class _TakesOne(Protocol):
    def call(self, event: Any, /) -> Call[Any]: ...


class _TakesNothing(Protocol):
    def call(self) -> Call[Any]: ...


TK = TypeVar("TK", bound=_TakesNothing)
TK1 = TypeVar("TK1", bound=_TakesOne)


class Outer(NamedTuple):
    """What the registries around one say about its tasks."""

    prefix: str
    defaults: Mapping[str, Any]
    middleware: tuple[Middleware, ...]
    provided: Mapping[type[Any], Provider]


NO_OUTER = Outer("", {}, (), {})


class Entry(NamedTuple):
    """A task seen from some registry: its name there, and what holds for it, outermost first."""

    declared: TaskDeclaration
    prefix: str
    defaults: Mapping[str, Any]
    middleware: tuple[Middleware, ...]
    provided: Mapping[type[Any], Provider]

    @property
    def name(self) -> str:
        return self.prefix + self.declared.name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *(self.prefix + alias for alias in self.declared.aliases))


class Registry(NotReleased):
    """Tasks without an app: for libraries, and against import cycles. `app.include(registry)` gives them to an app.

    >>> from perdure import Registry
    >>> billing = Registry(prefix="billing.", queue="billing")
    >>> @billing.task
    ... async def charge(cents: int) -> None: ...
    >>> charge.name
    'billing.charge'
    """

    _own_options: ClassVar[tuple[str, ...]] = ("prefix",)  # beside the defaults for its tasks

    def __init__(self, *, prefix: str = "", **defaults: Unpack[TaskDefaults]) -> None:
        self._prefix = check_name(prefix, "prefix") if prefix else ""
        self._defaults = check_defaults(cast("Mapping[str, Any]", defaults), type(self).__name__, self._own_options)
        self._declared: dict[str, TaskDeclaration] = {}
        self._included: list[tuple[Registry, str]] = []
        self._parents: list[ref[Registry]] = []  # in the order of include
        self._definitions: dict[str, TaskDefinition] = {}
        self._by_identity: dict[object, TaskDefinition] = {}
        self._middleware: list[Middleware] = []
        self._provided: dict[type[Any], Provider] = {}
        self._recurring: dict[str, ScheduleDeclaration] = {}
        self._looked_up = -1

    @property
    def task(self) -> TaskMaker:
        """The decorator that makes a task of a function: `@app.task` or `@app.task(queue="mail")`."""
        return TaskMaker(self, {})

    def batch_task(self, *, size: int, wait: Duration = 0.05, **options: Unpack[TaskOptions]) -> BatchMaker:
        """The decorator that makes a task whose jobs are run together, up to `size` at once; a worker waits `wait`
        seconds for that many."""
        batch = BatchOptions(check_size(size, "@batch_task: size"), micros_of(wait, "@batch_task: wait") / SECOND)
        checked = check_task_options(cast("Mapping[str, Any]", options), "@batch_task")
        return BatchMaker(self, checked, batch)

    def subscribe(self, topic: str, /, *, routing_key: Routing = ANY) -> Callable[[TK1], TK1]:
        """Let a task run for every event of a topic: `@app.subscribe("record.created")` on top of `@app.task`."""
        check_name(topic, "topic")
        check_routing(routing_key)

        def subscribed(task: TK1) -> TK1:
            if not isinstance(task, Task):
                raise InvalidCall("@subscribe stands on top of @task: it takes a task")
            task._first_parameter("an event")
            wanted = (topic, routing_key)
            if wanted not in task._declared.subscriptions:
                task._declared.subscriptions.append(wanted)
            start_generation()
            return task

        return subscribed

    def middleware(self, middleware: Middleware, /) -> Middleware:
        """Put this around every attempt of the tasks here and in included registries; the first is the outermost.

        `@app.middleware async def timed(ctx, call_next): …; return await call_next()`
        """
        self._middleware.append(check_middleware(middleware))
        start_generation()
        return middleware

    def provide(
        self,
        kind: type[T],
        make: Callable[[], T | Awaitable[T] | AbstractAsyncContextManager[T] | AbstractContextManager[T]],
        /,
        *,
        scope: Scope = "worker",
    ) -> None:
        """Give handlers here and in included registries what `make` makes: to parameters annotated with this kind, and by
        `ctx.get(kind)`. Again for the same kind replaces."""
        self._provided[kind] = Provider(kind, make, scope)
        start_generation()

    @overload
    def schedule(
        self,
        cron: str,
        /,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        max_runs: int | None = None,
        missed: Literal["skip", "once", "all"] = "skip",
        overlap: Literal["allow", "skip"] = "allow",
    ) -> Callable[[TK], TK]: ...
    @overload
    def schedule(
        self,
        cron: str,
        call: Call[Any],
        /,
        *,
        name: str,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        max_runs: int | None = None,
        missed: Literal["skip", "once", "all"] = "skip",
        overlap: Literal["allow", "skip"] = "allow",
    ) -> None: ...
    def schedule(
        self,
        cron: str,
        call: Call[Any] | None = None,
        /,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        max_runs: int | None = None,
        missed: Literal["skip", "once", "all"] = "skip",
        overlap: Literal["allow", "skip"] = "allow",
    ) -> Callable[[TK], TK] | None:
        """Enqueue a job whenever the cron expression ticks: on top of a task, `@app.schedule("0 3 * * *")`, or with
        arguments, `app.schedule("0 3 * * *", task.call(1), name="nightly")`. Workers store it when they start."""
        from ..schedules.declaration import ScheduleDeclaration, check_call, rule_of, schedule_name

        own = None if name is None else schedule_name(self._prefix + schedule_name(name))
        rule = rule_of(cron, timezone=timezone, start=start, end=end, max_runs=max_runs, missed=missed, overlap=overlap)
        if call is not None:
            if own is None:
                raise InvalidCall('a schedule of a call needs a name: app.schedule(cron, task.call(…), name="nightly")')
            self._recur(ScheduleDeclaration.of(own, check_call(call, own), rule))
            return None

        def decorate(task: TK) -> TK:
            if not isinstance(task, Task):
                raise InvalidCall("@app.schedule(…) stands on top of a task: put @app.task below it")
            self._recur(ScheduleDeclaration.of(own, check_call(task.call(), own), rule))
            return task

        return decorate

    def include(self, other: Registry, /, *, prefix: str = "") -> None:
        """Know another registry's tasks too, those it gets later included. Their names get `prefix` in front."""
        if not isinstance(other, Registry):
            raise InvalidCall(f"include takes a Registry, not {type(other).__name__}")
        if other is self or self in other._inside():
            raise InvalidCall("a registry cannot include itself")
        if prefix:
            check_name(prefix, "prefix")
        if (other, prefix) in self._included:
            return
        self._included.append((other, prefix))
        try:
            self._check_names()
            for above in self._ancestors():
                above._check_names()
        except (DuplicateTask, InvalidCall):
            self._included.pop()
            raise
        other._parents.append(ref(self))
        start_generation()

    def definitions(self) -> dict[str, TaskDefinition]:
        """Every task by its names here, aliases and included registries' tasks with them."""
        if self._looked_up != generation():
            self._look_up()
        return self._definitions

    # -- declaring -----------------------------------------------------------------------------------
    def _declare(
        self,
        handler: Callable[..., Any],
        options: Mapping[str, Any],
        frame: Any,
        batch: BatchOptions | None = None,
    ) -> Task[..., Any]:
        if isinstance(handler, staticmethod):
            handler = handler.__func__
        name = self._prefix + (options.get("name") or _name_of(handler))
        aliases = tuple(self._prefix + alias for alias in options.get("aliases", ()))
        for each in (name, *aliases):
            check_name(each, "task name")
        own = {option: value for option, value in options.items() if option not in ("name", "aliases")}
        declared = TaskDeclaration(self, handler, name, aliases, own, frame, batch)
        before = self._declared.get(name)
        self._declared[name] = declared
        try:
            if before is not None and before.identity != declared.identity:
                raise _duplicate(name, before, declared)
            for registry in (self, *self._ancestors()):
                registry._check_names()
        except (DuplicateTask, InvalidCall):
            if before is None:
                del self._declared[name]
            else:
                self._declared[name] = before
            raise
        start_generation()
        return Task(declared)

    def _recur(self, recurring: ScheduleDeclaration) -> None:
        before = self._recurring.get(recurring.key)
        if before is not None and not recurring.same_again(before):
            raise InvalidCall(f"two schedules are named {recurring.key!r}; give one of them another name=")
        self._recurring[recurring.key] = recurring

    def _check_names(self) -> None:
        known: dict[str, TaskDeclaration] = {}
        for entry in self._entries():
            for name in entry.names:
                if len(name.encode()) > NAME_BYTES:
                    raise InvalidCall(f"task name {name!r} has more than {NAME_BYTES} bytes")
                if known.setdefault(name, entry.declared) is not entry.declared:
                    raise _duplicate(name, known[name], entry.declared)

    # -- looking up ----------------------------------------------------------------------------------
    def _entries(self, outer: Outer = NO_OUTER) -> Iterator[Entry]:
        defaults = {**outer.defaults, **self._defaults}
        middleware = (*outer.middleware, *self._middleware)
        provided = {**outer.provided, **self._provided}
        for declared in self._declared.values():
            yield Entry(declared, outer.prefix, defaults, middleware, provided)
        for other, more in self._included:
            yield from other._entries(Outer(outer.prefix + more, defaults, middleware, provided))

    def _all_recurring(self, prefix: str = "") -> Iterator[tuple[str | None, ScheduleDeclaration]]:
        """Declared schedules with their names as seen from here; those that have their task's come with None."""
        for recurring in self._recurring.values():
            yield None if recurring.name is None else prefix + recurring.name, recurring
        for other, more in self._included:
            yield from other._all_recurring(prefix + more)

    def _look_up(self) -> None:
        definitions: dict[str, TaskDefinition] = {}
        self._by_identity = {}
        for entry in self._entries():
            declared = entry.declared
            options = {**entry.defaults, **declared.options}
            definition = TaskDefinition(
                declared, entry.name, entry.names[1:], options, self._max_bytes(), entry.middleware, entry.provided
            )
            definitions.update(dict.fromkeys(entry.names, definition))
            self._by_identity[declared.identity] = definition
        self._definitions = definitions
        self._looked_up = generation()

    def _bind(self, declared: TaskDeclaration, options: Mapping[str, Any]) -> TaskBinding:
        """Where the verbs of a task lead: the app, the task as the app knows it, the plan of its jobs."""
        app = self._app()
        if app is None:
            raise NoApp(f"task {declared.name} belongs to a Registry that no app has included: app.include(registry)")
        app.definitions()
        definition = app._by_identity.get(declared.identity)
        if definition is None:
            raise InvalidCall(
                f"task {declared.name} is not registered with this app; use the app that declared it, "
                "or app.include(registry)"
            )
        plan = JobTemplate(definition.name, {**definition.options, **options}, lambda: reader(app.clock)())
        runtime = app._runtime
        runtime.expires |= plan.template.expires is not None
        runtime.brief |= plan.brief
        return TaskBinding(generation(), app, runtime.client, definition, plan)

    def _app(self) -> Perdure | None:
        # an app included last is likely the one of the moment: a test's own, or the one after a reload
        for parent in reversed(self._above()):
            if (app := parent._app()) is not None:
                return app
        return None

    def _above(self) -> list[Registry]:
        return [parent for each in self._parents if (parent := each()) is not None]

    def _max_bytes(self) -> int:
        return MAX_BYTES

    def _inside(self) -> list[Registry]:
        return [inner for other, _ in self._included for inner in (other, *other._inside())]

    def _ancestors(self) -> list[Registry]:
        return [above for parent in self._above() for above in (parent, *parent._ancestors())]


def _name_of(handler: Callable[..., Any]) -> str:
    name = getattr(handler, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise InvalidCall(f'{handler!r} has no name of its own; give it one: app.task(name="…")(handler)')
    return name


def _duplicate(name: str, first: TaskDeclaration, second: TaskDeclaration) -> DuplicateTask:
    def where(declared: TaskDeclaration) -> str:
        return f"{declared.identity[1]}.{declared.identity[2]}"

    return DuplicateTask(
        f"two tasks are named {name!r}: {where(first)} and {where(second)}; give one of them another name="
    )
