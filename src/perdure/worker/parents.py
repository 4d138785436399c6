"""What a job gets of those it waited for: their results, read before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..errors import ArgumentsDoNotFit, InvalidCall
from ..flow.jobs import takes_of, with_argument
from ..job import Record
from ..storage.contract import Storage
from .attempt import Attempt

if TYPE_CHECKING:
    from ..task import Definition

Parent = tuple[str, str | None]  # the task that gave it, and the result as JSON text


async def bring_parents(store: Storage, attempts: Sequence[Attempt]) -> dict[Attempt, InvalidCall]:
    """Give each attempt the results of its parents, in declared order, and its first argument where one is due. Gives those
    that cannot take it."""
    wanted = {attempt.record.id: _ids(attempt.record) for attempt in attempts}
    ends = await _ends_of(store, {id for ids in wanted.values() for id in ids})
    unfit = {}
    for attempt in attempts:
        found = [ends.get(id) for id in wanted[attempt.record.id]]
        attempt.parents = tuple(("", None) if end is None else (end.task, end.result) for end in found)
        try:
            attempt.record = _with_result(attempt.record, attempt.definition, attempt.parents)
        except InvalidCall as error:
            unfit[attempt] = error
    return unfit


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
