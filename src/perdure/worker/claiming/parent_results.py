"""Read the results of a job's parents before the job starts, and release its followers in steps when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ...core.lifecycle import Succeeded
from ...core.outcome import Dead, Outcome
from ...core.record import Record
from ...errors import ArgumentsDoNotFit, InvalidCall
from ...flow.build_jobs import RESULTS, takes_of, with_argument
from ...observe import log
from ...storage.contract import Storage
from ..completion_queue import CompletionQueue
from ..running.attempt import Attempt, ChildReport, hand_back
from ..running.slots import Slots
from .answer_timeout import AnswerTimeout

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

Parent = tuple[str, str | None]  # the task that gave it, and the result as JSON text


async def read_parents(store: Storage, attempts: Sequence[Attempt]) -> dict[Attempt, InvalidCall | Outcome]:
    """Give each attempt the results of its parents, in declared order, and its first argument if it takes one from them.

    Returns the attempts whose handler is not called, with their ends: they cannot take the argument, or only collect
    results."""
    wanted = {attempt.record.id: _ids(attempt.record) for attempt in attempts}
    ends = await _ends_of(store, {id for ids in wanted.values() for id in ids})
    unstarted: dict[Attempt, InvalidCall | Outcome] = {}
    for attempt in attempts:
        found = [ends.get(id) for id in wanted[attempt.record.id]]
        attempt.parents = tuple(("", None) if end is None else (end.task, end.result) for end in found)
        if takes_of(attempt.record.meta) == RESULTS:
            unstarted[attempt] = _collect(attempt)
            continue
        try:
            attempt.record = _with_result(attempt.record, attempt.definition, attempt.parents)
        except InvalidCall as error:
            unstarted[attempt] = error
    return unstarted


async def _ends_of(store: Storage, ids: Iterable[str]) -> dict[str, Record]:
    """The last job of each one's chain."""
    ends: dict[str, Record] = {}
    ahead = {id: id for id in ids}  # by parent: the job of its chain to look at
    while ahead:
        asked = list(ahead.items())
        ahead = {}
        for start in range(0, len(asked), store.chunk):
            part = asked[start : start + store.chunk]
            for (id, _), record in zip(part, await store.get([at for _, at in part]), strict=True):
                if record is not None:
                    ends[id] = record
                    if record.next_id is not None:
                        ahead[id] = record.next_id
    return ends


def _collect(attempt: Attempt) -> Outcome:
    """The end of a job that collects the results of its parents."""
    text = f"[{','.join(text or 'null' for _, text in attempt.parents)}]"
    definition, size = attempt.definition, len(text.encode())
    if definition is not None and size > definition.max_bytes:
        return Dead(f"the results of its group have {size} bytes of JSON together, more than {definition.max_bytes}")
    return ChildReport(Succeeded(text))


def _ids(record: Record) -> list[str]:
    return msgspec.json.decode(record.after or "[]", type=list[str])


def _with_result(record: Record, definition: TaskDefinition | None, parents: Sequence[Parent]) -> Record:
    takes = takes_of(record.meta)
    if takes is None or definition is None:
        return record
    if definition.first_parameter is None:
        raise ArgumentsDoNotFit(f"{definition.name} takes no argument any more, and was to be handed a result")
    results = [text or "null" for _, text in parents]
    value = f"[{','.join(results)}]" if takes == "list" else results[0]
    return msgspec.structs.replace(record, payload=with_argument(record.payload, definition.first_parameter, value))


class Followers:
    """Reads the results of parents before their followers run. Also releases the followers of a job in steps when there are
    very many of them."""

    def __init__(self, store: Storage, slots: Slots, completions: CompletionQueue) -> None:
        self._store = store
        self._slots = slots
        self._completions = completions
        self._timeout = AnswerTimeout(store.answer_timeout)
        self._reading: dict[asyncio.Task[None], Sequence[Attempt]] = {}
        self._releasing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many attempts wait for the results of their parents."""
        return sum(map(len, self._reading.values()))

    def attempts(self) -> Iterator[Attempt]:
        for attempts in self._reading.values():
            yield from attempts

    def prepare(self, attempts: Sequence[Attempt]) -> None:
        """Read what these followers get from their parents, then feed them to the slots."""
        reading = asyncio.get_running_loop().create_task(self._prepare(attempts), name="perdure parents")
        self._reading[reading] = attempts
        reading.add_done_callback(self._reading.pop)

    def release(self) -> None:
        """A job with very many followers has ended: release the rest of them."""
        if self._releasing is None or self._releasing.done():
            self._releasing = asyncio.get_running_loop().create_task(self._release(), name="perdure release")

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel what is under way. Returns the tasks to wait for."""
        tasks = [*self._reading, *([self._releasing] if self._releasing is not None else [])]
        for task in tasks:
            task.cancel()
        return tasks

    async def _prepare(self, attempts: Sequence[Attempt]) -> None:
        """No other part of the worker knows these attempts meanwhile. So they are handed back whatever breaks, also when the
        claim loop stops and cancels this task."""
        try:
            ends = await self._timeout.answer(read_parents(self._store, attempts))
            for attempt, end in ends.items():
                if not attempt.ended:
                    self._slots.end_unstarted(attempt, end)
        except BaseException as error:
            for attempt in attempts:
                if not attempt.ended:
                    attempt.ended = True
                    self._completions.report(attempt, hand_back(attempt))
            if not isinstance(error, Exception):
                raise
            log.service_failed("reading the results of parents", error)
        else:
            self._slots.feed([attempt for attempt in attempts if not attempt.ended])
        finally:
            self._completions.wake()

    async def _release(self) -> None:
        try:
            while await self._timeout.answer(self._store.resolve_edges(self._store.chunk)):
                pass
        except Exception as error:  # upkeep goes on with it
            log.service_failed("resolving edges", error)
