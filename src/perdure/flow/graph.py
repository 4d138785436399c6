"""Calls in an order: what `app.enqueue` takes beside single calls.

A `Node` is a call and the nodes it waits for. A `Flow` has one result: that of its last call, or the list of its last ones
(`group`). `then` hands that result to the next call as its first argument. A `Graph` has no result of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from ..errors import InvalidCall
from ..tasks.task import Call, Task

if TYPE_CHECKING:
    from typing import TypeVarTuple

    Calls = TypeVarTuple("Calls")

R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)

Takes = Literal["one", "list"]  # what a call gets of its parents as its first argument


class _Takes(Protocol[A_contra, R_co]):
    def call(self, value: A_contra, /) -> Call[R_co]: ...


class Node(Generic[R_co]):
    """A call in a flow or graph."""

    __slots__ = ("_after", "_call", "_takes")

    def __init__(self, call: Call[R_co], after: Sequence[Node[Any]] = (), takes: Takes | None = None) -> None:
        self._call = call
        self._after = tuple(dict.fromkeys(after))
        self._takes = takes

    def __repr__(self) -> str:
        return f"<Node {self._call._task._declared.name}>"


class Flow(Generic[R_co]):
    """Calls that end in one result."""

    __slots__ = ("_ends", "_many", "_nodes")

    def __init__(self, nodes: Sequence[Node[Any]], ends: Sequence[Node[Any]], *, many: bool) -> None:
        self._nodes = tuple(nodes)
        self._ends = tuple(ends)
        self._many = many

    def then(self, task: _Takes[R_co, S], /) -> Flow[S]:
        """Go on with a task that gets the result so far as its first argument."""
        return followed(self._nodes, self._ends, task, many=self._many)

    def __repr__(self) -> str:
        return f"<Flow of {len(self._nodes)} call(s)>"


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
        self._nodes: list[Node[Any]] = []
        self._known: set[Node[Any]] = set()

    def add(self, call: Call[R], /, *, after: Sequence[Node[Any]] = ()) -> Node[R]:
        """A further call; it waits for these nodes of the same graph."""
        _check_call(call, "graph.add")
        if not isinstance(after, Sequence):
            raise InvalidCall(f"graph.add: after= takes a list of what graph.add gave, not {type(after).__name__}")
        for node in after:
            if not isinstance(node, Node):
                raise InvalidCall(f"graph.add: after= takes what graph.add gave, not {type(node).__name__}")
            if node not in self._known:
                raise InvalidCall("graph.add: after= names a node of another graph")
        node = Node(call, after)
        self._nodes.append(node)
        self._known.add(node)
        return node

    def __repr__(self) -> str:
        return f"<Graph of {len(self._nodes)} call(s)>"


class Continuing:
    """What `Continue` gives: a handler that returns it completes its job and starts these."""

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
        nodes = []
        for call in calls:
            _check_call(call, "chain")
            nodes.append(Node(call, nodes[-1:]))
        return Flow(nodes, nodes[-1:], many=False)

    def Continue(call, /):
        """Return this from a handler: its job is done, and the call goes on with its chain, both or neither."""
        flow = chain(call) if isinstance(call, Call) else call
        if not isinstance(flow, Flow):
            raise InvalidCall(f"Continue takes task.call(…) or a flow, not {type(call).__name__}")
        if not flow._nodes:
            raise InvalidCall("Continue: a group of no calls has no job to go on with; give it .then(task)")
        return Continuing(flow)


def group(*calls: Call[R]) -> Flow[list[R]]:
    """Calls side by side; the result is the list of theirs, in this order."""
    nodes = []
    for call in calls:
        _check_call(call, "group")
        nodes.append(Node(call))
    return Flow(nodes, nodes, many=True)


def graph() -> Graph:
    """An empty graph, to `add` calls to."""
    return Graph()


def followed(nodes: Sequence[Node[Any]], ends: Sequence[Node[Any]], task: object, *, many: bool) -> Flow[Any]:
    """These calls, and a task that gets the result of their ends."""
    if not isinstance(task, Task):
        raise InvalidCall(f"then(…) takes a task, without a call: a.call(1).then(b); not {type(task).__name__}")
    node: Node[Any] = Node(task._open_call(), ends, "list" if many else "one")
    return Flow([*nodes, node], [node], many=False)


def _check_call(call: object, what: str) -> None:
    if not isinstance(call, Call):
        raise InvalidCall(f"{what} takes calls, task.call(…), not {type(call).__name__}")
