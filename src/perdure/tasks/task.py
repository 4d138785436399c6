"""Tasks: named functions that jobs call.

A `Task` is what the decorator returns to the user, a `Call` one bound set of arguments. A `TaskBinding` connects a task to
an app: it has the `TaskDefinition`, with the handler, and the `JobTemplate`, with the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from ..core.ids import id_text
from ..core.job import JobId
from ..core.validation import MAX_BYTES
from ..core.verb import verb
from ..errors import InvalidCall
from ..storage.types import EnqueueResult
from .definition import TaskBinding, TaskDeclaration, generation
from .options import CallOptions, check_call_options, check_expiry
from .suggestions import VerbsOfOthers

if TYPE_CHECKING:
    from .._sync import SyncTask
    from ..app import Perdure
    from ..client.handle import JobHandle
    from ..flow.graph import Flow, _Takes

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)


class Task(VerbsOfOthers, Generic[P, R]):
    """A named function that jobs call. Made by `@app.task`; its verbs check arguments against the annotations.

    >>> from perdure import Perdure
    >>> app = Perdure("memory://")
    >>> @app.task
    ... async def greet(name: str) -> str:
    ...     return f"hello {name}"
    >>> greet.sync.enqueue("Ada").duplicate
    False
    """

    def __init__(self, declared: TaskDeclaration, options: dict[str, Any] | None = None) -> None:
        self._declared = declared
        self._options = options or {}
        self._bound: TaskBinding | None = None
        self.__doc__ = declared.handler.__doc__
        self.__wrapped__ = declared.handler

    @property
    def name(self) -> str:
        """The name under which its jobs are stored."""
        registry = self._declared.registry
        return self._bind().definition.name if registry._app() is not None else self._declared.name

    @property
    def sync(self) -> SyncTask[P, R]:
        """The blocking forms of its verbs."""
        from .._sync import SyncTask

        return SyncTask(self)

    @verb
    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job; it is durable when this returns."""
        bound = self._bind()
        definition, client = bound.definition, bound.client
        job = bound.plan.job(definition.payload(args, kwargs), definition.arguments_hash)
        if bound.plan.connection is None:
            (result,) = await client.enqueue_jobs([job])
        else:
            (result,) = await client.enqueue_in_transaction(bound.plan.connection, [job])
        return client.handle_of(result, definition)

    @verb
    async def run(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler here and now, without a store. Outcomes and errors come out as they are."""
        from ..handler.run_inline import run_inline

        bound = self._bind()
        job = bound.job(bound.definition.payload(args, kwargs))
        result: R = await run_inline(bound.app, bound.definition, job)
        return result

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The arguments bound and checked, for `app.enqueue`."""
        declared = self._declared
        bound = self._bound
        if bound is not None and bound.generation == generation():
            return Call(self, bound.definition.payload(args, kwargs))
        if declared.registry._app() is not None:
            return Call(self, self._bind().definition.payload(args, kwargs))
        arguments = declared.arguments_without(declared.injected(declared.registry._provided))
        return Call(self, arguments.payload(declared.name, MAX_BYTES, args, kwargs))

    def using(self, **options: Unpack[CallOptions]) -> Task[P, R]:
        """The same task with options for the calls made through it: `send.using(delay=60).enqueue(…)`."""
        who = f"{self._declared.name}.using(…)"
        merged = _merge_options(self._options, check_call_options(options, who))
        check_expiry({**self._declared.options, **merged}, who)
        return Task(self._declared, merged)

    def handle(self, id: JobId | str, /) -> JobHandle[R]:
        """The handle of a job known by its id."""
        bound = self._bind()
        return bound.client.handle_of(EnqueueResult(id_text(id)), bound.definition)

    def __repr__(self) -> str:
        return f"<Task {self._declared.name}>"

    if not TYPE_CHECKING:  # a type checker says "not callable", which is right

        def __call__(self, /, *args, **kwargs):
            name = self._spelled()
            raise TypeError(
                f"{name} is a task: {name}.enqueue(…) puts a job on record, {name}.sync.enqueue(…) does so in code "
                f"without an event loop, and {name}.run(…) runs it here and now"
            )

    def _bind(self) -> TaskBinding:
        bound = self._bound
        if bound is None or bound.generation != generation():
            bound = self._bound = self._declared.registry._bind(self._declared, self._options)
        return bound

    def _bind_to(self, app: Perdure) -> TaskBinding:
        bound = self._bound
        if bound is not None and bound.app is app and bound.generation == generation():
            return bound
        return app._bind(self._declared, self._options)

    def _open_call(self) -> Call[R]:
        """A call whose first argument is to come."""
        self._first_parameter()
        return Call(self, "{}")

    def _first_parameter(self, what: str = "a result") -> str:
        """The name of what a result or an event is handed to."""
        declared = self._declared
        if declared.registry._app() is not None:
            first = self._bind().definition.first_parameter
        else:
            first = declared.arguments_without(declared.injected(declared.registry._provided)).first
        if first is None:
            raise InvalidCall(f"{declared.name} takes no argument by its position that {what} could be handed to")
        return first

    def _spelled(self) -> str:
        return getattr(self._declared.handler, "__name__", self._declared.name)


class Call(msgspec.Struct, Generic[R_co], eq=False, gc=False):
    """A task with its arguments, bound and checked: what `app.enqueue` takes.

    Ids that were made for an enqueue which failed are kept until one succeeds, so that repeating it is safe. The garbage
    collector does not look at calls, of which there are thousands in a list: nothing that lasts may keep one.
    """

    _task: Task[Any, R_co]
    _payload: str
    _ids: Sequence[str] = ()

    def then(self, task: _Takes[R_co, S], /) -> Flow[S]:
        """Go on with a task that gets this one's result as its first argument: `a.call(1).then(b)`."""
        from ..flow.graph import Plan, PlannedCall

        step = PlannedCall(self)
        return Plan([step], [step]).then(task)

    def __repr__(self) -> str:
        return f"<Call {self._task._declared.name} {self._payload[:80]}>"


def _merge_options(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = old | new
    # the later of delay and at wins over the earlier
    if new.get("delay") is not None:
        merged.pop("at", None)
    elif new.get("at") is not None:
        merged.pop("delay", None)
    return merged
