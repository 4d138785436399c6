"""Settling: what follows for jobs that wait when those they wait for have ended.

Up to so many edges are looked at, all in one transaction. A parent stays on the list until its last edge has been looked
at, so a crash between two steps, or a fan-out of any size, leaves nobody behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.job import FINAL, State
from holdfast.lifecycle import Cancelled, decide
from holdfast.storage.contract import PARENT_CANCELLED
from holdfast.storage.rules import Fate, fate

from . import edges
from .apply import apply
from .database import Work
from .gates import know
from .listing import get
from .placing import place
from .queries import load
from .rows import Many, json_text, lists_of

_sql = load("edges")
_LOWER = Many(_sql["lower"], 2, (100, 10, 1))


class Standing(msgspec.Struct, array_like=True):
    """A parent as far as its edges look at it."""

    id: str
    state: State
    next_id: str | None


_standing = msgspec.json.Decoder(list[Standing])


def any_unsettled(work: Work) -> bool:
    return bool(work.connection.value(_sql["any_unsettled"]))


def settle(work: Work, limit: int, now: int) -> int:
    """Look at up to `limit` edges and what else is on the list; gives how many."""
    looked = 0
    while looked < limit and (step := _step(work, limit - looked, now)):
        looked += step
    return looked


def _step(work: Work, limit: int, now: int) -> int:
    """The first part of the list; gives how much was looked at, 0 if nothing is left."""
    connection = work.connection
    listed = lists_of(connection.value(_sql["unsettled"], (limit,)))
    place(work, [job for _, job, placing in listed if placing], now)
    parents = [job for _, job, placing in listed if not placing]
    parents += lists_of(connection.value(_sql["ended"], (max(0, limit - len(listed)),)))
    parents = list(dict.fromkeys(parents))
    looked, left = _look_at(work, parents, limit, now) if parents else (0, set())
    struck = [number for number, job, placing in listed if placing or job not in left]
    if struck:
        connection.change(_sql["strike"], (json_text(struck),))
    return len(listed) + looked


def _look_at(work: Work, parents: Sequence[str], limit: int, now: int) -> tuple[int, set[str]]:
    """What follows from the edges of these parents; gives how many were looked at, and the parents that have more."""
    text = json_text(parents)
    found = {row.id: row for row in _standing.decode(work.connection.value(_sql["standing"], (text,)))}
    edges.follow(work, found)
    over = [id for id in parents if id not in found or found[id].state in FINAL]
    asked = [(id, fate(found.get(id), "succeeded") is Fate.STAY) for id in over]
    listed = lists_of(work.connection.value(_sql["edges"], (json_text(asked), limit)))
    cut = listed[-1][0] if len(listed) == limit else None
    left = set() if cut is None else set(over[over.index(cut) :])
    work.connection.change(_sql["unmark"], (json_text([id for id in over if id not in left]),))
    _follow(work, [(found.get(parent), parent, child, run_when) for parent, child, run_when in listed], now)
    return len(over) + len(listed), left


def _follow(work: Work, listed: Sequence[tuple[Standing | None, str, str, str]], now: int) -> None:
    """Lead on, close or cancel; children that are not blocked any more only lose their edges."""
    blocked = _blocked(work, [child for _, _, child, _ in listed])
    fates = [(fate(parent, run_when), parent, id, child) for parent, id, child, run_when in listed if child in blocked]
    cancelled = {child for what, _, _, child in fates if what is Fate.CANCEL}
    edges.close_all(work, cancelled | {child for _, _, child, _ in listed if child not in blocked})
    going_on = [each for each in fates if each[3] not in cancelled]
    leading = [
        (parent.next_id, id, child)
        for what, parent, id, child in going_on
        if what is Fate.LEAD_ON and parent is not None and parent.next_id is not None
    ]
    led = _lead_on(work, leading, {child: run_when for _, _, child, run_when in listed})
    closed = [(id, child) for _, _, id, child in going_on if (id, child) not in led]
    edges.close(work, closed)
    _let_go(work, Counter(child for _, child in closed), blocked, now)
    _cancel(work, cancelled, now)


def _blocked(work: Work, children: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Which of these are blocked: their queue, and whether they will be parked."""
    rows = lists_of(work.connection.value(_sql["blocked"], (json_text(list(dict.fromkeys(children))),)))
    return {id: (queue, bool(parks)) for id, queue, parks in rows}


def _lead_on(work: Work, leading: Sequence[tuple[str, str, str]], run_when: dict[str, str]) -> set[edges.Edge]:
    """Edges lead from the next jobs of their chains. Gives those for which that is so: a child that waits for the next
    job already has one edge fewer."""
    wanted = {(next_id, child): (id, child) for next_id, id, child in leading}
    for edge in edges.open_ones(work.connection, sorted(wanted)):
        del wanted[edge]
    if wanted:
        edges.close(work, list(wanted.values()))
        edges.put(work, [(next_id, child, run_when[child]) for next_id, child in wanted])
        # the next job may have ended, or may not be there at all
        work.connection.change(_sql["note_unsettled"], (json_text(sorted({next_id for next_id, _ in wanted})),))
    return set(wanted.values())


def _let_go(work: Work, closed: Counter[str], blocked: dict[str, tuple[str, bool]], now: int) -> None:
    if not closed:
        return
    _LOWER.run(work.connection, list(closed.items()))
    if edges.let_go(work, list(closed), now):
        work.ready |= {blocked[child][0] for child in closed}
        know(work, [child for child in closed if blocked[child][1]])


def _cancel(work: Work, children: set[str], now: int) -> None:
    if not children:
        return
    ids = sorted(children)
    work.connection.change(_sql["waits_for_nobody"], (json_text(ids),))
    records = [record for record in get(work.connection, ids) if record is not None]
    apply(work, [decide(record, Cancelled(PARENT_CANCELLED)) for record in records], now)
