"""Resolves edges: releases, cancels or leaves the followers of jobs that have ended.

Up to a given number of edges are resolved in one transaction. A parent stays on the list until its last edge is resolved, so
neither a crash between two steps nor a large fan-out leaves a follower blocked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import Cancelled, decide
from perdure.storage.contract import PARENT_CANCELLED
from perdure.storage.rules.records import EdgeDecision, decide_edge
from perdure.storage.rules.unreadable import is_unreadable

from ..connection.work import Work
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.listing import get
from ..reading.records import WHOLE, Many, json_text, lists_of
from ..upkeep.unreadable import sort_out
from ..writing.admit import admit
from ..writing.apply import PreparedChanges, apply
from . import edges

_sql = load("edges", whole=WHOLE)
_LOWER = Many(_sql["lower"], 2, (100, 10, 1))


class ParentRow(msgspec.Struct, array_like=True):
    """The fields of a parent that decide about its edges."""

    id: str
    state: State
    next_id: str | None
    hidden: bool


_parent_rows = msgspec.json.Decoder(list[ParentRow], strict=False)


def any_unresolved(work: Work) -> bool:
    return bool(work.connection.value(_sql["any_unresolved"]))


def resolve_edges(work: Work, limit: int, now: int) -> int:
    """Resolve up to `limit` edges and other entries of the list; returns how many."""
    resolved = 0
    while resolved < limit and (step := _step(work, limit - resolved, now)):
        resolved += step
    return resolved


def _step(work: Work, limit: int, now: int) -> int:
    """Resolve the first part of the list; returns how much, 0 if nothing is left."""
    connection = work.connection
    listed = lists_of(connection.value(_sql["unresolved"], (limit,)))
    admit(work, [job for _, job, is_new in listed if is_new], now)
    parents = [job for _, job, is_new in listed if not is_new]
    parents += lists_of(connection.value(_sql["ended"], (max(0, limit - len(listed)),)))
    parents = sorted(set(parents))
    resolved, left = _resolve(work, parents, limit, now) if parents else (0, set())
    done = [number for number, job, is_new in listed if is_new or job not in left]
    if done:
        connection.change(_sql["remove_resolved"], (json_text(done),))
    return len(listed) + resolved


def _resolve(work: Work, parents: Sequence[str], limit: int, now: int) -> tuple[int, set[str]]:
    """Resolve the edges of these parents; returns how many, and the parents that have more."""
    text = json_text(parents)
    found = {row.id: row for row in _parents(work, text, now)}
    edges.mark_followed(work, found)
    over = [id for id in parents if id not in found or found[id].state in FINAL]
    asked = [(id, decide_edge(found.get(id), "succeeded") is EdgeDecision.STAY) for id in over]
    listed = lists_of(work.connection.value(_sql["edges"], (json_text(asked), limit)))
    cut = listed[-1][0] if len(listed) == limit else None
    left = set() if cut is None else set(over[over.index(cut) :])
    work.connection.change(_sql["unmark"], (json_text([id for id in over if id not in left]),))
    _follow(work, [(found.get(parent), parent, child, run_when) for parent, child, run_when in listed], now)
    return len(over) + len(listed), left


def _parents(work: Work, ids: str, now: int) -> list[ParentRow]:
    """The states of these parents. One that cannot be read is set aside first."""
    try:
        return _parent_rows.decode(work.connection.value(_sql["parent_states"], (ids,)))
    except (msgspec.MsgspecError, UnicodeDecodeError, work.error):
        sort_out(work, lists_of(work.connection.value(_sql["numbers"], (ids,))), now)
        return _parent_rows.decode(work.connection.value(_sql["parent_states"], (ids,)))


def _follow(work: Work, listed: Sequence[tuple[ParentRow | None, str, str, str]], now: int) -> None:
    """Close edges, lead them on, or cancel the children. Children that are not blocked any more only lose their edges."""
    blocked = _blocked_among(work, [child for _, _, child, _ in listed])
    cancelled: set[str] = set()
    leading: list[tuple[str, str, str]] = []
    closed: list[edges.Edge] = []
    for parent, id, child, run_when in listed:
        if child not in blocked or child in cancelled:
            continue
        what = decide_edge(parent, run_when)
        if what is EdgeDecision.CANCEL:
            cancelled.add(child)
        elif what is EdgeDecision.LEAD_ON and parent is not None and parent.next_id is not None:
            leading.append((parent.next_id, id, child))
        else:
            closed.append((id, child))
    closed += _lead_on(work, leading, {child: run_when for _, _, child, run_when in listed})
    edges.close(work, closed)
    edges.close_all(work, cancelled | {child for _, _, child, _ in listed if child not in blocked})
    _release(work, Counter(child for _, child in closed if child not in cancelled), blocked, now)
    _cancel(work, cancelled, now)


def _blocked_among(work: Work, children: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """The queues of those of these jobs that are blocked, and whether the jobs will be parked."""
    rows = lists_of(work.connection.value(_sql["blocked"], (json_text(list(dict.fromkeys(children))),)))
    return {id: (queue, bool(parks)) for id, queue, parks in rows}


def _lead_on(work: Work, leading: Sequence[tuple[str, str, str]], run_when: dict[str, str]) -> list[edges.Edge]:
    """Let edges lead from the next jobs of their chains. Returns the edges that are closed instead, because the child waits
    for the next job already."""
    wanted = {(next_id, child): (id, child) for next_id, id, child in reversed(leading)}
    for edge in edges.open_among(work.connection, sorted(wanted)):
        del wanted[edge]
    led = set(wanted.values())
    if wanted:
        edges.close(work, sorted(led))
        edges.put(work, [(next_id, child, run_when[child]) for next_id, child in wanted])
        # the next job may have ended, or may not be stored
        work.connection.change(_sql["note_unresolved"], (json_text(sorted({next_id for next_id, _ in wanted})),))
    return [(id, child) for _, id, child in leading if (id, child) not in led]


def _release(work: Work, closed: Counter[str], blocked: dict[str, tuple[str, bool]], now: int) -> None:
    if not closed:
        return
    _LOWER.run(work.connection, list(closed.items()))
    if edges.release(work, list(closed), now):
        work.ready |= {blocked[child][0] for child in closed}
        register_gates(work, [child for child in closed if blocked[child][1]])


def _cancel(work: Work, children: set[str], now: int) -> None:
    if not children:
        return
    ids = sorted(children)
    work.connection.change(_sql["clear_waits"], (json_text(ids),))
    records = [record for record in get(work.connection, ids, now) if record is not None]
    if any(is_unreadable(record) for record in records):
        numbers = lists_of(work.connection.value(_sql["numbers"], (json_text(ids),)))
        records = sort_out(work, numbers, now)[0]
    apply(work, PreparedChanges([decide(record, Cancelled(PARENT_CANCELLED)) for record in records]), now)
