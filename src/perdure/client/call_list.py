"""Turns the calls of one enqueue into jobs, and the store's results into handles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.ids import new_ids
from ..core.record import NewJob
from ..errors import InvalidCall
from ..flow.graph import PlannedCall
from ..storage.types import EnqueueResult
from ..tasks.definition import TaskBinding
from ..tasks.task import Call
from .handle import JobHandle

if TYPE_CHECKING:
    from ..app import Perdure
    from .app_runtime import AppRuntime


LIGHT = 4096  # characters of a payload that is so short that many travel in one call
STEP = 500  # handles that are built at once


class CallList:
    """The calls of one enqueue, checked. Their ids stay until all are stored (`keep_ids`, `forget_ids`), so that repeating
    the same calls after an error is safe. `order`: what each call waits for, if they have an order."""

    def __init__(self, runtime: AppRuntime, calls: Sequence[Call[Any]], order: Sequence[PlannedCall] = ()) -> None:
        self._runtime = runtime
        self._calls = calls
        app = runtime.app
        self._one = _one_binding(app, calls)
        self._bindings = [bound_to(app, call) for call in calls] if self._one is None else [self._one] * len(calls)
        self._payloads = [call._payload for call in calls]
        for planned, bound in zip(order, self._bindings, strict=False):
            if planned.takes is not None:
                bound.definition.check_handed("the result of what is before it")
        self._check_sizes()
        self._ids = _kept_ids(calls)
        self._prebuilt: dict[int, tuple[list[EnqueueResult], list[JobHandle[Any]]]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def connection(self, given: object) -> object:
        """The caller's transaction that they are stored in, named for all or for each; None: none."""
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
        """Whether building their jobs can fail: a unique key that is made of the arguments reads them once more."""
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
            for bound, payload, id in zip(self._bindings[part], payloads, ids, strict=True)
        ]

    def prebuild_handles(self, start: int, count: int) -> Iterator[None]:
        """Build the handles of a chunk while its jobs are being stored, as if no job were a duplicate. A few at each step,
        so that other tasks of the event loop go on."""
        results: list[EnqueueResult] = []
        handles: list[JobHandle[Any]] = []
        for first in range(start, start + count, STEP):
            part = slice(first, min(first + STEP, start + count))
            results += [EnqueueResult(id) for id in self._ids[part]]
            handles += [
                JobHandle(self._runtime, id, bound.definition)
                for id, bound in zip(self._ids[part], self._bindings[part], strict=True)
            ]
            yield
        self._prebuilt[start] = results, handles

    def handles(self, start: int, results: list[EnqueueResult]) -> list[JobHandle[Any]]:
        """Handles for the jobs in this chunk, given the store's results."""
        expected, handles = self._prebuilt.pop(start, ([], []))
        if results == expected:
            return handles
        handle_of = self._runtime.client.handle_of
        bindings = self._bindings[start : start + len(results)]
        return [handle_of(result, bound.definition) for result, bound in zip(results, bindings, strict=True)]

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
        return self._bindings if self._one is None else [self._one]

    def _check_sizes(self) -> None:
        if self._one is not None and max(map(len, self._payloads)) * 4 <= self._one.definition.max_bytes:
            return
        for payload, bound in zip(self._payloads, self._bindings, strict=True):
            definition = bound.definition
            limit = definition.max_bytes
            if len(payload) * 4 > limit and (size := len(payload.encode())) > limit:
                raise InvalidCall(
                    f"{definition.name}: the arguments together have {size} bytes of JSON, more than {limit}"
                )


def bound_to(app: Perdure, call: Call[Any]) -> TaskBinding:
    """The binding of a call's task to this app."""
    return call._task._bind_to(app)


def _one_binding(app: Perdure, calls: Sequence[Call[Any]]) -> TaskBinding | None:
    """The binding of all of these calls, if they are of one task."""
    return bound_to(app, calls[0]) if len({call._task for call in calls}) == 1 else None


def _kept_ids(calls: Sequence[Call[Any]]) -> list[str]:
    """Ids for all calls, if an enqueue of some of them has failed before: those get the same ids again. A call that is in
    the list several times is several jobs."""
    if not any(call._ids for call in calls):
        return []
    used: Counter[Call[Any]] = Counter()
    ids = []
    for call, new in zip(calls, new_ids(len(calls)), strict=True):
        number = used[call]
        used[call] += 1
        ids.append(call._ids[number] if number < len(call._ids) else new)
    return ids
