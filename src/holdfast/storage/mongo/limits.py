"""A claim under limits: who of the parked jobs may start now.

What the rules of `limiting` ask for is read in the transaction: how many run under a key is the sum of its `slots`
and of what this transaction has done so far; the starts under a rate are one note per key. Claims come
one after the other (see `gates`), so what one counts no other can add to; a hold that is given up meanwhile only makes room,
and knocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy

import msgspec

from holdfast.job import Record
from holdfast.storage.contract import Claim, Want
from holdfast.storage.limiting import (
    Gate,
    Passed,
    Place,
    Starts,
    Use,
    closed_now,
    keys_of,
    limits_of,
    pass_gates,
    recent,
)
from holdfast.storage.rules import write_claim

from . import gates, slots
from .documents import WHOLE, Document, records_from
from .places import takeable
from .rows import write
from .steps import Steps, find, update

_starts = msgspec.json.Decoder(Starts)


class Limits:
    """The limits as one transaction sees and writes them."""

    def __init__(self, heard: gates.Heard, now: int, running: slots.Change) -> None:
        self._heard = heard
        self._running = running
        self._gates = gates.Gates(heard.gates)
        self._now = now
        self._used: dict[str, Use] = {}
        self._locked = False
        self._full: set[str] = set()  # keys that were found used up
        self._more = False  # keys have shut more gates than were opened again
        self._left: dict[str, bool] = {}  # by gate: whether jobs are left that could not be let through

    def listen(self) -> Steps[None]:
        """Open what the knocks tell of."""
        back = self._heard.last > self._now
        if not (self._heard.knocks or self._heard.fresh or back):
            return
        yield from self._lock()
        if back:
            yield from self._gates.reopen_all_under_rates(self._now)
        yield from self._gates.make_known(self._heard.places)
        self._more = True
        yield from self._reopen()

    def take(self, claim: Claim, want: Want) -> Steps[list[Record]]:
        """The best jobs that may start, over all open gates that are wanted."""
        condition = gates.wanted(want, self._heard.paused, alone=want.alone)
        taken: list[str] = []
        seen: dict[str, None] = {}
        while len(taken) < want.limit:
            found = yield from self._gates.open_ones(condition, self._now, seen)
            if found:
                yield from self._lock()
                seen |= dict.fromkeys(gate["_id"] for gate in found)
                taken += yield from self._pass(found, want.limit - len(taken))
            if len(found) < gates.AT_ONCE and not (yield from self._reopen()):
                break
        return (yield from self._claimed(claim, taken))

    def ended(self, wants: Sequence[Want]) -> Steps[list[int]]:
        """Take off what was heard; gives how long to wait until there is more to hear, or a job may start."""
        kept = (yield from self._gates.shut_by(self._free_keys())) if self._more else set[str]()
        yield from gates.heard_of(self._heard, kept)
        opens_at = yield from self._opens_at(wants)
        waiting = [] if opens_at is None else [max(0, opens_at - self._now)]
        return [*waiting, 0] if kept or len(self._heard.knocks) >= gates.HEARD else waiting

    def _opens_at(self, wants: Sequence[Want]) -> Steps[int | None]:
        """When a job may start that one of these wants asks for: now, or when a rate lets it."""
        opening: list[int] = []
        for want in wants:
            condition = gates.wanted(want, self._heard.paused, alone=want.alone)
            found = yield from self._gates.open_sometime(condition)
            unknown = {gate["_id"]: 1 for gate in found if gate["_id"] not in self._left}
            places = yield from gates.heads(unknown, takeable(self._now))
            waiting = [gate["limits"] for gate in found if self._left.get(gate["_id"], False) or gate["_id"] in places]
            yield from self._look_up(waiting)
            for limits in waiting:
                why = closed_now(limits, self._used, self._now)
                at = self._now if why is None else why.opens_at
                opening += [] if at is None else [at]
        return min(opening, default=None)

    def any_suspect(self, wants: Iterable[Want]) -> Steps[bool]:
        for want in wants:
            condition = gates.wanted(want, self._heard.paused, alone=True)
            found = yield from self._gates.any_ones(condition)
            if found:
                at_one: Document = {"place": {"$in": found}, **takeable(self._now)}
                if (yield from find("places", at_one, {"_id": 1}, limit=1)):
                    return True
        return False

    # -- below ---------------------------------------------------------------------------------------
    def _reopen(self) -> Steps[bool]:
        """Open some of the gates that keys have shut which have room, as far as is known; whether there were any."""
        keys = self._free_keys()
        if not (self._more and keys):
            return False
        most = max(gates.AT_ONCE, 2 * len(keys))
        opened = yield from self._gates.reopen(keys, most)
        self._more = opened == most
        return opened > 0

    def _free_keys(self) -> list[str]:
        return [key for key in self._heard.keys if key not in self._full]

    def _lock(self) -> Steps[None]:
        if not self._locked:
            self._locked = True
            yield from gates.lock(self._now)

    def _pass(self, found: Sequence[Document], limit: int) -> Steps[list[str]]:
        """Let the best jobs through these gates, shut those that are used up, forget those at which nobody stands."""
        yield from self._look_up(gate["limits"] for gate in found)
        most = {gate["_id"]: min(limit, self._room(gate["limits"])) for gate in found}
        standing = yield from gates.heads({gate: room + 1 for gate, room in most.items()}, takeable(self._now))
        places = {gate: jobs[: most[gate]] for gate, jobs in standing.items()}
        waiting = {gate["_id"]: gate for gate in found if gate["_id"] in places}
        lines = [Gate(gate["limits"], places[id]) for id, gate in waiting.items()]
        passed = pass_gates(lines, self._used, limit, self._now)
        self._note(places, waiting, passed)
        through = set(passed.ids)
        self._left |= {gate: any(job[2] not in through for job in jobs) for gate, jobs in standing.items()}
        yield from self._write_starts(passed.starts, waiting.values())
        yield from self._gates.shut(waiting.values(), passed.closed, self._now)
        yield from self._gates.forget([gate["_id"] for gate in found if gate["_id"] not in places])
        if len(found) == gates.AT_ONCE:
            still_open = [gate["_id"] for gate in found if gate["limits"] not in passed.closed]
            yield from self._gates.put_behind(still_open, self._now)
        return passed.ids

    def _room(self, limits: str) -> int:
        """How many may start under these limits, as far as they alone are concerned."""
        room = []
        for limit in limits_of(limits):
            use = self._used[limit.key]
            if limit.most is not None:
                room.append(limit.most - use.running)
            if limit.starts is not None and limit.window is not None:
                room.append(limit.starts - sum(n for _, n in recent(use.starts, limit.window, self._now)))
        return max(1, min(room, default=1))

    def _look_up(self, limits: Iterable[str]) -> Steps[None]:
        """How much of the keys of these limits is used."""
        limits = list(limits)
        keys = [key for key in keys_of(limits) if key not in self._used]
        if not keys:
            return
        running = yield from slots.running(keys, self._heard.slots, self._running)
        rated = {limit.key for text in limits for limit in limits_of(text) if limit.starts is not None}
        starts = yield from _read_starts(key for key in keys if key in rated)
        self._used |= {key: Use(running[key], starts.get(key, ())) for key in keys}

    def _note(self, places: Mapping[str, Sequence[Place]], waiting: Mapping[str, Document], passed: Passed) -> None:
        """Count those who were let through, and remember what is used up."""
        self._full |= {why.key for why in passed.closed.values() if why.opens_at is None}
        ids = set(passed.ids)
        for gate, jobs in places.items():
            through = sum(job[2] in ids for job in jobs)
            for key in keys_of([waiting[gate]["limits"]]):
                use = self._used[key]
                self._used[key] = Use(use.running + through, use.starts)
        for key, starts in passed.starts.items():
            self._used[key] = Use(self._used[key].running, starts)

    def _write_starts(self, changed: Mapping[str, Starts], waiting: Iterable[Document]) -> Steps[None]:
        windows: dict[str, int] = {}
        for limit in (limit for gate in waiting for limit in limits_of(gate["limits"])):
            windows[limit.key] = max(windows.get(limit.key, 0), limit.window or 0)
        yield from update("notes", [_started(key, starts, windows.get(key, 0)) for key, starts in changed.items()])

    def _claimed(self, claim: Claim, ids: Sequence[str]) -> Steps[list[Record]]:
        if not ids:
            return []
        found = yield from find("jobs", {"_id": {"$in": list(ids)}}, WHOLE)
        by_id = {record.id: record for record in records_from(found)}
        records = [by_id[id] for id in ids if id in by_id]
        before = {record.id: copy(record) for record in records}
        for record in records:
            write_claim(record, claim, self._now)
        yield from write(before, records)
        return records


def _read_starts(keys: Iterable[str]) -> Steps[dict[str, Starts]]:
    ids = [f"starts/{key}" for key in keys]
    if not ids:
        return {}
    found = yield from find("notes", {"_id": {"$in": ids}})
    return {note["_id"].removeprefix("starts/"): _starts.decode(note["text"]) for note in found}


def _started(key: str, starts: Starts, window: int) -> Document:
    note: Document = {"text": msgspec.json.encode(starts).decode(), "over": starts[-1][0] + window if starts else 0}
    return {"q": {"_id": f"starts/{key}"}, "u": {"$set": note}, "upsert": True}
