"""Calls on their way into a store: where each leads in this app, and the jobs that they become."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.ids import new_ids
from ..core.record import NewJob
from ..errors import InvalidCall
from ..flow.graph import Node
from ..storage.outbox import Late
from ..storage.types import EnqueueResult
from ..tasks.definition import TaskBinding
from ..tasks.task import Call
from .handle import JobHandle

if TYPE_CHECKING:
    from ..app import Perdure


LIGHT = 4096  # characters of a payload, of which a store may be given many at once
STEP = 500  # handles that are made at once


class CallList:
    """The calls of one enqueue, checked. Their ids stay until all are stored (`keep_ids`, `forget_ids`), so that repeating
    the same calls after an error is safe. `nodes`: their order, if they have one."""

    def __init__(self, app: Perdure, calls: Sequence[Call[Any]], nodes: Sequence[Node[Any]] = ()) -> None:
        self._app = app
        self._calls = calls
        self._one = _one_bound(app, calls)
        self.bounds = [bound_to(app, call) for call in calls] if self._one is None else [self._one] * len(calls)
        self._payloads = [call._payload for call in calls]
        for node, bound in zip(nodes, self.bounds, strict=False):
            if node._takes is not None:
                bound.definition.check_handed("the result of what is before it")
        self._check_sizes()
        self._ids = _kept_ids(calls)
        self._expected: dict[int, tuple[list[EnqueueResult], list[JobHandle[Any]]]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def connection(self, given: object) -> object:
        """The caller's transaction that they are stored in, said for all or for each; None: our own."""
        named = [bound.plan.connection for bound in self._kinds()]
        found = [each for each in (given, *named) if each is not None]
        if any(each is not found[0] for each in found):
            raise InvalidCall("the calls of one enqueue name different connections; use one of them for all")
        if found and any(each is None for each in named) and given is None:
            raise InvalidCall(
                "some calls of one enqueue name a connection and some do not; give app.enqueue(…, connection=)"
            )
        return found[0] if found else None

    @property
    def may_fail(self) -> bool:
        """Whether making their jobs can fail: a key that is made of the arguments reads them once more."""
        return any(bound.plan.hashes_arguments for bound in self._kinds())

    @property
    def light(self) -> bool:
        """Whether their payloads are so short that many may travel together."""
        return max(map(len, self._payloads)) <= LIGHT

    def jobs(self, start: int = 0, end: int | None = None) -> Sequence[NewJob]:
        """The jobs of these calls, or of a part of them."""
        part = slice(start, end)
        self._make_ids(len(self) if end is None else min(end, len(self)))
        payloads, ids = self._payloads[part], self._ids[part]
        if self._one is not None:
            return self._one.plan.jobs(payloads, self._one.definition.arguments_hash, ids)
        return [
            bound.plan.job(payload, bound.definition.arguments_hash, id)
            for bound, payload, id in zip(self.bounds[part], payloads, ids, strict=True)
        ]

    def prebuild_handles(self, start: int, count: int) -> Iterator[None]:
        """Make handles of a part of them whose jobs are on their way, as they are if nothing stands in their way; some at
        each step, so that others get their turn."""
        app, placed = self._app, list[EnqueueResult]()
        handles: list[JobHandle[Any]] = []
        for place in range(start, start + count, STEP):
            part = slice(place, min(place + STEP, start + count))
            ids = self._ids[part]
            placed += [EnqueueResult(id) for id in ids]
            if self._one is not None:
                definition = self._one.definition
                handles += [JobHandle(app, id, definition) for id in ids]
            else:
                pairs = zip(ids, self.bounds[part], strict=True)
                handles += [JobHandle(app, id, bound.definition) for id, bound in pairs]
            yield
        self._expected[start] = placed, handles

    def handles(self, start: int, placed: list[EnqueueResult]) -> list[JobHandle[Any]]:
        """The handles of a part of them, of which that has become."""
        expected, handles = self._expected.pop(start, ([], []))
        return handles if placed == expected else self._handles(start, placed)

    def _handles(self, start: int, placed: list[EnqueueResult]) -> list[JobHandle[Any]]:
        return [
            JobHandle(self._app, each.id, bound.definition, each.duplicate, each.dropped, isinstance(each, Late))
            for each, bound in zip(placed, self.bounds[start : start + len(placed)], strict=True)
        ]

    def keep_ids(self) -> None:
        """They were not all stored: the next enqueue of the same calls repeats this one."""
        kept: defaultdict[Call[Any], list[str]] = defaultdict(list)
        for call, id in zip(self._calls, self._ids, strict=False):  # nobody has seen the others' ids
            kept[call].append(id)
        for call, ids in kept.items():
            call._ids = ids

    def forget_ids(self) -> None:
        """They are stored: to enqueue the same calls once more makes new jobs."""
        for call in self._calls:
            if call._ids:
                call._ids = ()

    def _make_ids(self, end: int) -> None:
        if len(self._ids) < end:
            self._ids += new_ids(end - len(self._ids))

    def _kinds(self) -> Sequence[TaskBinding]:
        return self.bounds if self._one is None else [self._one]

    def _check_sizes(self) -> None:
        if self._one is not None and max(map(len, self._payloads)) * 4 <= self._one.definition.max_bytes:
            return
        for payload, bound in zip(self._payloads, self.bounds, strict=True):
            definition = bound.definition
            limit = definition.max_bytes
            if len(payload) * 4 > limit and (size := len(payload.encode())) > limit:
                raise InvalidCall(
                    f"{definition.name}: the arguments together have {size} bytes of JSON, more than {limit}"
                )


def bound_to(app: Perdure, call: Call[Any]) -> TaskBinding:
    """Where a call leads in this app."""
    task = call._task
    if task._bound is not None and task._bound.app is app and task._bound.generation == app._generation():
        return task._bound
    return app._bind(task._declared, task._options)


def _one_bound(app: Perdure, calls: Sequence[Call[Any]]) -> TaskBinding | None:
    """Where all of them lead, if that is one place."""
    return bound_to(app, calls[0]) if len({call._task for call in calls}) == 1 else None


def _kept_ids(calls: Sequence[Call[Any]]) -> list[str]:
    """Ids for all, if an enqueue of some of them has failed: theirs once more. A call that stands there several times is
    several jobs."""
    if not any(call._ids for call in calls):
        return []
    used: Counter[Call[Any]] = Counter()
    ids = []
    for call, new in zip(calls, new_ids(len(calls)), strict=True):
        number = used[call]
        used[call] += 1
        ids.append(call._ids[number] if number < len(call._ids) else new)
    return ids
