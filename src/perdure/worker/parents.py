"""What a job gets of those it waited for: their results, read before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..errors import ArgumentsDoNotFit, InvalidCall
from ..flow.jobs import RESULTS, takes_of, with_argument
from ..job import Record
from ..lifecycle import Succeeded
from ..outcome import Dead, Outcome
from ..storage.contract import Storage
from .attempt import Attempt, Told

if TYPE_CHECKING:
    from ..task import Definition

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
    return Told(Succeeded(text))


def _ids(record: Record) -> list[str]:
    return msgspec.json.decode(record.after or "[]", type=list[str])


def _with_result(record: Record, definition: Definition | None, parents: Sequence[Parent]) -> Record:
    takes = takes_of(record.meta)
    if takes is None or definition is None:
        return record
    if definition.first_parameter is None:
        raise ArgumentsDoNotFit(f"{definition.name} takes no argument any more, and was to be handed a result")
    results = [text or "null" for _, text in parents]
    value = f"[{','.join(results)}]" if takes == "list" else results[0]
    return msgspec.structs.replace(record, payload=with_argument(record.payload, definition.first_parameter, value))
