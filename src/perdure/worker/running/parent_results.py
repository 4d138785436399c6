"""Read the results of a job's parents before the job starts, and release its followers in steps when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ...core.lifecycle import Succeeded
from ...core.outcome import Dead, Outcome
from ...core.record import Record
from ...errors import ArgumentsDoNotFit, InvalidCall
from ...flow.build_jobs import RESULTS, takes_of, with_argument
from ...observe import log
from ...storage.contract import Storage
from ..claiming.answer_timeout import AnswerTimeout
from .attempt import Attempt, ChildReport

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

Parent = tuple[str, str | None]  # the task that gave it, and the result as JSON text


async def bring_parents(store: Storage, attempts: Sequence[Attempt]) -> dict[Attempt, InvalidCall | Outcome]:
    """Give each attempt the results of its parents, in declared order, and its first argument where one is due. Gives those
    whose handler is not called, with their end: they cannot take the argument, or have nothing to do but to gather."""
    wanted = {attempt.record.id: _ids(attempt.record) for attempt in attempts}
    ends = await _ends_of(store, {id for ids in wanted.values() for id in ids})
    over: dict[Attempt, InvalidCall | Outcome] = {}
    for attempt in attempts:
        found = [ends.get(id) for id in wanted[attempt.record.id]]
        attempt.parents = tuple(("", None) if end is None else (end.task, end.result) for end in found)
        if takes_of(attempt.record.meta) == RESULTS:
            over[attempt] = _gathered(attempt)
            continue
        try:
            attempt.record = _with_result(attempt.record, attempt.definition, attempt.parents)
        except InvalidCall as error:
            over[attempt] = error
    return over


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


def _gathered(attempt: Attempt) -> Outcome:
    """The end of a job that gathers the results of its parents."""
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


Fit = Callable[[list[Attempt]], None]
Unfit = Callable[[Attempt, InvalidCall | Outcome | None], None]


class Followers:
    """Reads the results of parents, and releases the followers of a job step by step when there are very many.

    `fit` gets attempts that may begin; `unfit` those whose handler is not called, with their end, or None where the store
    failed.
    """

    def __init__(self, store: Storage, patience: AnswerTimeout, fit: Fit, unfit: Unfit) -> None:
        self._store = store
        self._patience = patience
        self._fit = fit
        self._unfit = unfit
        self._bringing: dict[asyncio.Task[None], Sequence[Attempt]] = {}
        self._settling: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Attempts whose parents are being read."""
        return sum(map(len, self._bringing.values()))

    def at_hand(self) -> Iterator[Attempt]:
        for attempts in self._bringing.values():
            yield from attempts

    def bring(self, attempts: Sequence[Attempt]) -> None:
        """Read what these jobs get of their parents, then let them begin."""
        bringing = asyncio.get_running_loop().create_task(self._brought(attempts), name="perdure parents")
        self._bringing[bringing] = attempts
        bringing.add_done_callback(self._bringing.pop)

    def settle(self) -> None:
        """A job with very many followers has ended."""
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle(), name="perdure settling")

    def under_way(self) -> list[asyncio.Task[None]]:
        return [*self._bringing, *([self._settling] if self._settling is not None else [])]

    async def _brought(self, attempts: Sequence[Attempt]) -> None:
        """Nobody else knows these attempts meanwhile, so they are handed back whatever breaks, also when the pump stops and
        cancels this."""
        try:
            over = await self._patience.answer(bring_parents(self._store, attempts))
            for attempt, why in over.items():
                self._unfit(attempt, why)
        except BaseException as error:
            for attempt in attempts:
                self._unfit(attempt, None)
            if not isinstance(error, Exception):
                raise
            log.service_failed("reading the results of parents", error)
        else:
            self._fit([attempt for attempt in attempts if not attempt.ended])

    async def _settle(self) -> None:
        try:
            while await self._patience.answer(self._store.resolve_edges(self._store.chunk)):
                pass
        except Exception as error:  # upkeep goes on with it
            log.service_failed("settling edges", error)
