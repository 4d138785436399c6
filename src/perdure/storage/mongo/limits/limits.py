"""A claim under limits: which of the parked jobs may start now.

The transaction reads what `storage.rules.limits` needs. How many jobs run under a key is the sum of its `slots` and of what
this transaction has done so far; the starts under a rate are one note per key. Claims come one after the other (see
`limit_turns`), so no other can add to what one has counted. A hold that is given up meanwhile only makes room, and sends a
wake-up.

Two claims of one process may run concurrently where they have nothing to do but to take jobs: all gates that they want are
open, few, without a rate, and have room for both. Neither uses wake-ups, nor merges slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.contract import Want
from perdure.storage.rules.limits import (
    Admitted,
    ClaimOrder,
    Gate,
    Starts,
    Use,
    admit_jobs,
    keys_of,
    limits_of,
    recent_starts,
    starts_of,
    why_closed,
)

from ..claiming.claim_positions import not_expired
from ..connection.operations import Steps, find, update
from ..reading.records import WHOLE, Document, gate_of
from ..writing.updates import read_rows
from . import limit_gates, running_counts
from .limit_turns import ROOM, LimitTurn, NeedsExclusiveTurn

GUESSED = 8  # gates of which the next claim asks for the heads before it knows whether it wants them
UNHEARD = 16  # wake-ups that may wait while claims run concurrently


class Limits:
    """The limits as one transaction reads and writes them."""

    def __init__(self, news: limit_gates.LimitNews, now: int, running: running_counts.Change, turn: LimitTurn) -> None:
        self._news = news
        self._running = running
        self._turn = turn
        self._gates = limit_gates.Gates(news.gates)
        self._now = now
        self._used: dict[str, Use] = {}
        self._heads = news.heads
        self._rooms: dict[str, int] = {}  # by gate: how many might start there
        self._full: set[str] = set()  # keys that were found used up
        self._more = False  # keys have shut more gates than were opened again
        self._is_sated = False  # a want got all that it asked for, and there are very many gates
        self._remaining: dict[str, bool] = {}  # by gate: whether jobs are left that could not be let through

    def open_gates(self) -> Steps[None]:
        """Open the gates that wake-ups name."""
        back = self._news.last > self._now
        if self._turn.concurrent:
            self._check_that_nothing_opens(back)
            if self._news.fresh:  # another process must conflict with this claim, or read its wake-ups
                yield from self._turn.lock(self._now)
            return
        if not (self._news.wakeups or self._news.fresh or back):
            return
        yield from self._turn.lock(self._now)
        if back:
            yield from self._gates.reopen_all_under_rates(self._now)
        yield from self._gates.add_gates(self._news.places)
        self._more = True
        yield from self._reopen()

    def take(self, want: Want) -> Steps[list[Record]]:
        """The best jobs that may start, over all open gates that are wanted. The caller writes the claim."""
        condition = limit_gates.condition_of(want, self._news.paused, alone=want.alone)
        claimed: list[str] = []
        seen: dict[str, None] = {}
        if self._turn.concurrent and not self._gates.all_open(condition, self._now):
            raise NeedsExclusiveTurn
        most = self._gates.to_look_at(want.limit)
        while len(claimed) < want.limit:
            found = yield from self._gates.find_open(condition, self._now, seen, most)
            if found:
                yield from self._turn.lock(self._now)
                seen |= dict.fromkeys(gate["_id"] for gate in found)
                claimed += yield from self._admit(found, want.limit - len(claimed), most)
            if len(found) < most and not (yield from self._reopen()):
                break
            most = min(limit_gates.AT_ONCE, 2 * most)
        self._is_sated = self._is_sated or (0 < want.limit <= len(claimed) and not self._gates.at_hand)
        self._turn.expect({gate: self._rooms[gate] for gate in seen} if len(seen) <= GUESSED else {})
        self._turn.usual = (
            bool(claimed) and self._gates.all_open(condition, self._now) and self._is_tidy(seen, want.limit)
        )
        rows = yield from read_rows(claimed, WHOLE, now=self._now)
        return [rows[id] for id in claimed if id in rows and _may_start(rows[id])]

    def finish(self, wants: Sequence[Want]) -> Steps[list[int]]:
        """Remove the wake-ups and write the gates; returns how long to wait until there are more, or a job may start."""
        kept = (yield from self._gates.shut_by(self._free_keys())) if self._more else set[str]()
        if not self._turn.concurrent:
            yield from limit_gates.remove_wakeups(self._news, kept)
        yield from self._gates.write(self._now)
        if self._is_sated:  # the next claim finds out whether that was all
            return [0]
        opens_at = yield from self._opens_at(wants)
        waiting = [] if opens_at is None else [max(0, opens_at - self._now)]
        return [*waiting, 0] if kept or len(self._news.wakeups) >= limit_gates.HEARD else waiting

    def _opens_at(self, wants: Sequence[Want]) -> Steps[int | None]:
        """When a job of these wants may start: now, or when a rate allows it."""
        opening: list[int] = []
        for want in wants:
            condition = limit_gates.condition_of(want, self._news.paused, alone=want.alone)
            found = yield from self._gates.find_opening(condition)
            unknown = {gate["_id"]: 1 for gate in found if gate["_id"] not in self._remaining}
            heads = yield from limit_gates.heads(unknown, not_expired(self._now))
            self._remaining |= {gate: bool(head.jobs) for gate, head in heads.items()}
            waiting = [gate["limits"] for gate in found if self._remaining[gate["_id"]]]
            yield from self._read_use(waiting)
            for limits in waiting:
                why = why_closed(limits, self._used, self._now)
                at = self._now if why is None else why.opens_at
                opening += [] if at is None else [at]
        return min(opening, default=None)

    def any_suspect(self, wants: Iterable[Want]) -> Steps[bool]:
        for want in wants:
            condition = limit_gates.condition_of(want, self._news.paused, alone=True)
            found = yield from self._gates.find_any(condition)
            if found:
                at_one: Document = {"place": {"$in": found}, **not_expired(self._now)}
                if (yield from find("places", at_one, {"_id": 1}, limit=1)):
                    return True
        return False

    # -- below ---------------------------------------------------------------------------------------
    def _reopen(self) -> Steps[bool]:
        """Open some of the gates that were shut by keys with room; returns whether there were any."""
        keys = self._free_keys()
        if not (self._more and keys):
            return False
        most = max(limit_gates.AT_ONCE, 2 * len(keys))
        opened = yield from self._gates.reopen(keys, most)
        self._more = opened == most
        return opened > 0

    def _free_keys(self) -> list[str]:
        return [key for key in self._news.keys if key not in self._full]

    def _admit(self, found: Sequence[Document], limit: int, most_gates: int) -> Steps[list[str]]:
        """Admit the best jobs at these gates, shut gates that are used up, remove empty ones."""
        yield from self._read_use(gate["limits"] for gate in found)
        if self._turn.concurrent and not self._has_room_for(
            limit + self._turn.reserved_by_others, (gate["limits"] for gate in found)
        ):
            raise NeedsExclusiveTurn
        self._rooms |= {gate["_id"]: self._room(gate["limits"]) for gate in found}
        most = {gate["_id"]: min(limit, self._rooms[gate["_id"]]) for gate in found}
        heads_by_gate = yield from self._read_heads(most)
        places = {gate: jobs[: most[gate]] for gate, jobs in heads_by_gate.items() if jobs}
        waiting = {gate["_id"]: gate for gate in found if gate["_id"] in places}
        lines = [Gate(gate["limits"], places[id]) for id, gate in waiting.items()]
        admitted = admit_jobs(lines, self._used, limit, self._now)
        self._count_admitted(places, waiting, admitted)
        through = set(admitted.ids)
        self._turn.mine |= through
        self._remaining |= {gate: any(job[2] not in through for job in jobs) for gate, jobs in heads_by_gate.items()}
        if self._turn.concurrent:
            return admitted.ids
        yield from self._write_starts(admitted.starts, waiting.values())
        yield from self._gates.shut(waiting.values(), admitted.closed, self._now)
        yield from self._gates.forget([gate["_id"] for gate in found if gate["_id"] not in places])
        if len(found) == most_gates:
            still_open = [gate["_id"] for gate in found if gate["limits"] not in admitted.closed]
            yield from self._gates.move_to_the_end(still_open, self._now)
        return admitted.ids

    def _read_heads(self, most: Mapping[str, int]) -> Steps[dict[str, list[ClaimOrder]]]:
        """The best jobs at some gates that neither an earlier want nor a concurrent claim takes, so many of each and one
        more."""
        heads, self._heads = self._heads, {}
        while True:
            others = self._turn.others() | self._turn.mine
            heads_by_gate = {gate: _free(heads.get(gate), jobs + 1, others) for gate, jobs in most.items()}
            known_heads = {gate: jobs for gate, jobs in heads_by_gate.items() if jobs is not None}
            if len(known_heads) == len(most):
                return known_heads
            enough = {gate: jobs + 1 + len(others) for gate, jobs in most.items()}
            heads = yield from limit_gates.heads(enough, not_expired(self._now))

    def _check_that_nothing_opens(self, back: bool) -> None:
        """A concurrent claim uses no wake-ups: check that they are few, and that none of them opens a gate."""
        news = self._news
        if back or news.gates is None or news.slots is None:
            raise NeedsExclusiveTurn
        known = {gate["_id"] for gate in news.gates}
        shut = {gate["shut_by"] for gate in news.gates}
        if (
            len(news.wakeups) > UNHEARD
            or not known.issuperset(news.places)
            or any(f"k{key}" in shut for key in news.keys)
        ):
            raise NeedsExclusiveTurn
        self._turn.check(news.turns, self._now)

    def _is_tidy(self, seen: Iterable[str], limit: int) -> bool:
        """Whether the next claims may run concurrently: there is room, and nothing that a claim alone must tidy."""
        unheard = len(self._news.wakeups) if self._turn.concurrent else 0
        limits = [gate_of(gate).limits for gate in seen]
        return (
            2 * unheard <= UNHEARD
            and not running_counts.should_be_merged(self._news.slots or (), keys_of(limits))
            and self._has_room_for(ROOM * limit, limits)
        )

    def _has_room_for(self, jobs: int, limits: Iterable[str]) -> bool:
        """Whether so many more could start under each of these limits, and no rate counts them."""
        return all(
            limit.starts is None and (limit.most is None or limit.most - self._used[limit.key].running >= jobs)
            for text in limits
            for limit in limits_of(text)
        )

    def _room(self, limits: str) -> int:
        """How many jobs may start under these limits alone."""
        room = []
        for limit in limits_of(limits):
            use = self._used[limit.key]
            if limit.most is not None:
                room.append(limit.most - use.running)
            if limit.starts is not None and limit.window is not None:
                room.append(limit.starts - sum(n for _, n in recent_starts(use.starts, limit.window, self._now)))
        return max(1, min(room, default=1))

    def _read_use(self, limits: Iterable[str]) -> Steps[None]:
        """Read how much of the keys of these limits is used."""
        limits = list(limits)
        keys = [key for key in keys_of(limits) if key not in self._used]
        if not keys:
            return
        running = yield from running_counts.count_running(keys, self._news.slots, self._running)
        rated = {limit.key for text in limits for limit in limits_of(text) if limit.starts is not None}
        starts = yield from _read_starts(key for key in keys if key in rated)
        self._used |= {key: Use(running[key], starts.get(key, ())) for key in keys}

    def _count_admitted(
        self, places: Mapping[str, Sequence[ClaimOrder]], waiting: Mapping[str, Document], admitted: Admitted
    ) -> None:
        """Count the admitted jobs, and remember which keys are used up."""
        self._full |= {why.key for why in admitted.closed.values() if why.opens_at is None}
        ids = set(admitted.ids)
        for gate, jobs in places.items():
            through = sum(job[2] in ids for job in jobs)
            for key in keys_of([waiting[gate]["limits"]]):
                use = self._used[key]
                self._used[key] = Use(use.running + through, use.starts)
        for key, starts in admitted.starts.items():
            self._used[key] = Use(self._used[key].running, starts)

    def _write_starts(self, changed: Mapping[str, Starts], waiting: Iterable[Document]) -> Steps[None]:
        windows: dict[str, int] = {}
        for limit in (limit for gate in waiting for limit in limits_of(gate["limits"])):
            windows[limit.key] = max(windows.get(limit.key, 0), limit.window or 0)
        yield from update(
            "notes", [_starts_statement(key, starts, windows.get(key, 0)) for key, starts in changed.items()]
        )


def _may_start(record: Record) -> bool:
    return record.state is State.READY and record.parked


def _free(heads: limit_gates.Heads | None, jobs: int, others: set[str]) -> list[ClaimOrder] | None:
    """So many of the best jobs that no other claim takes; None: they are too few, and there may be more."""
    if heads is None:
        return None
    best = [job for job in heads.jobs if job[2] not in others][:jobs]
    return best if len(best) == jobs or heads.all else None


def _read_starts(keys: Iterable[str]) -> Steps[dict[str, Starts]]:
    ids = [f"starts/{key}" for key in keys]
    if not ids:
        return {}
    found = yield from find("notes", {"_id": {"$in": ids}})
    return {note["_id"].removeprefix("starts/"): starts_of(note["text"]) for note in found}


def _starts_statement(key: str, starts: Starts, window: int) -> Document:
    note: Document = {"text": msgspec.json.encode(starts).decode(), "over": starts[-1][0] + window if starts else 0}
    return {"q": {"_id": f"starts/{key}"}, "u": {"$set": note}, "upsert": True}
