"""Calls in an order: flows and graphs, which `app.enqueue` takes beside single calls.

A `Flow` has one result: that of its last call, or the list of its last ones (`group`). `then` hands that result to the
next call as its first argument. A `Graph` has no result of its own. Both hold a `Plan`: a list of planned calls, each
with those that it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from ..errors import InvalidCall
from ..tasks.task import Call, Task

R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)

Takes = Literal["one", "list"]  # what a call gets of its parents as its first argument


class _Takes(Protocol[A_contra, R_co]):
    def call(self, value: A_contra, /) -> Call[R_co]: ...


@dataclass(frozen=True, eq=False, slots=True)
class PlannedCall:
    """A call, the calls that it waits for, and what it gets of them as its first argument."""

    call: Call[Any]
    after: tuple[PlannedCall, ...] = ()
    takes: Takes | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls of a flow or graph, each behind those that it waits for. `ends`: those whose results are the result of the
    flow. `many`: that result is a list."""

    calls: Sequence[PlannedCall]
    ends: Sequence[PlannedCall] = ()
    many: bool = False

    def then(self, task: object) -> Flow[Any]:
        """A flow of these calls, and a task that gets their result."""
        if not isinstance(task, Task):
            raise InvalidCall(f"then(…) takes a task, without a call: a.call(1).then(b); not {type(task).__name__}")
        planned = PlannedCall(task._open_call(), tuple(self.ends), "list" if self.many else "one")
        return Flow(Plan([*self.calls, planned], [planned]))


class Node(Generic[R_co]):
    """A call in a graph."""

    __slots__ = ("_planned",)

    def __init__(self, planned: PlannedCall) -> None:
        self._planned = planned

    def __repr__(self) -> str:
        return f"<Node {self._planned.call._task._declared.name}>"


class Flow(Generic[R_co]):
    """Calls that end in one result."""

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def then(self, task: _Takes[R_co, S], /) -> Flow[S]:
        """Go on with a task that gets the result so far as its first argument."""
        return self._plan.then(task)

    def __repr__(self) -> str:
        return f"<Flow of {len(self._plan.calls)} call(s)>"


class Graph:
    """Calls, each after some of those before it.

    >>> from perdure import Perdure, graph
    >>> app = Perdure("memory://")
    >>> @app.task
    ... async def build(part: str) -> None: ...
    >>> g = graph()
    >>> left, right = g.add(build.call("left")), g.add(build.call("right"))
    >>> top = g.add(build.call("top"), after=[left, right])
    >>> len(app.sync.enqueue(g))
    3
    """

    def __init__(self) -> None:
        self._calls: dict[Node[Any], PlannedCall] = {}

    @property
    def _plan(self) -> Plan:
        return Plan(list(self._calls.values()))

    def add(self, call: Call[R], /, *, after: Sequence[Node[Any]] = ()) -> Node[R]:
        """A further call; it waits for these nodes of the same graph."""
        _check_call(call, "graph.add")
        if not isinstance(after, Sequence):
            raise InvalidCall(f"graph.add: after= takes a list of what graph.add gave, not {type(after).__name__}")
        for node in after:
            if not isinstance(node, Node):
                raise InvalidCall(f"graph.add: after= takes what graph.add gave, not {type(node).__name__}")
            if node not in self._calls:
                raise InvalidCall("graph.add: after= names a node of another graph")
        planned = PlannedCall(call, tuple(self._calls[node] for node in dict.fromkeys(after)))
        added: Node[R] = Node(planned)
        self._calls[added] = planned
        return added

    def __repr__(self) -> str:
        return f"<Graph of {len(self._calls)} call(s)>"


class Continuing:
    """The result of `Continue`: a handler that returns it completes its job and starts these."""

    __slots__ = ("flow",)

    def __init__(self, flow: Flow[Any]) -> None:
        self.flow = flow


if TYPE_CHECKING:

    def chain(*calls: *tuple[*tuple[Call[Any], ...], Call[R]]) -> Flow[R]: ...

    def Continue(call: Call[R] | Flow[R], /) -> R: ...
else:

    def chain(*calls):
        """Calls one after the other; each begins when the one before has succeeded. Results are in ctx.parents."""
        if not calls:
            raise InvalidCall("chain(…) needs at least one call")
        planned_calls = []
        for call in calls:
            _check_call(call, "chain")
            planned_calls.append(PlannedCall(call, tuple(planned_calls[-1:])))
        return Flow(Plan(planned_calls, planned_calls[-1:]))

    def Continue(call, /):
        """Return this from a handler: its job is done, and the call goes on with its chain, both or neither."""
        flow = chain(call) if isinstance(call, Call) else call
        if not isinstance(flow, Flow):
            raise InvalidCall(f"Continue takes task.call(…) or a flow, not {type(call).__name__}")
        if not flow._plan.calls:
            raise InvalidCall("Continue: a group of no calls has no job to go on with; give it .then(task)")
        return Continuing(flow)


def group(*calls: Call[R]) -> Flow[list[R]]:
    """Calls side by side; the result is the list of theirs, in this order."""
    planned_calls = []
    for call in calls:
        _check_call(call, "group")
        planned_calls.append(PlannedCall(call))
    return Flow(Plan(planned_calls, planned_calls, many=True))


def graph() -> Graph:
    """An empty graph, to `add` calls to."""
    return Graph()


def _check_call(call: object, what: str) -> None:
    if not isinstance(call, Call):
        raise InvalidCall(f"{what} takes calls, task.call(…), not {type(call).__name__}")
