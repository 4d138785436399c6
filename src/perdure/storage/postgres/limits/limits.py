"""Claims jobs under limits, which are parked while they are ready.

Claimers of limited jobs take turns (one advisory lock, held until they commit), so that their counts stay exact. Whoever
parks a job or releases a hold under a limit does not wait for them: it inserts a row into `limit_notices`, in its own
transaction, and the next claimer reads it.

**Gates.** Parked jobs wait in lanes of gate (the same limits), queue, task and routing key. Each gate records the claim
order of its best job, or an earlier one (its head). A claim reads only the best open gates by their heads, so it costs the
same however many gates there are. It lets a job start only if no gate that it did not read can have a better one, and then
moves the heads of the gates that it read. It closes gates that let nobody through: by the key that is used up, or until the
instant at which a rate allows the next start. A key of which a hold was released may have free slots (`limit_free_keys`)
until a gate is found closed by it again: meanwhile claims reopen its gates, those first that have been closed for longest.

**Slots.** What runs under a key is counted: the holds, each with its key, and a row per key for jobs with several keys,
inserted by the claim and deleted when the notice of the hold's end is read. **Starts** are rows too, as long as they count.

Gates of one key without a rate are the most common by far. Where there are no others, one statement does the whole turn
(`fast_limits.py`). Everything else is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.core.record import Record
from perdure.storage.contract import Claim, Want
from perdure.storage.rules.limits import (
    Admitted,
    ClaimOrder,
    Closed,
    Gate,
    Starts,
    Use,
    admit_jobs,
    keys_of,
    limits_of,
    why_closed,
)

from ..claiming.claim import ROW_EACH, claimer, wanted
from ..connection.server import Connection, Statement, pipeline
from ..queries import load
from ..reading.records import array, claimed_of, digest, names, numbers, slot_of
from .fast_limits import LOOK, NOTICES, bounds, gates_for

ROUNDS = 8  # reads of gates or notices in one claim: other claimers wait for their turn meanwhile
LONG = 10_000_000  # microseconds after which upkeep reopens a closed gate
BEHIND_ALL = (
    (1 << 31) - 1,
    (1 << 63) - 1,
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
)  # the head of a gate that nobody can claim from


class OpenGate(NamedTuple):
    """A lane as it was read: its row, its recorded head, and its best jobs that can run."""

    place: str | None
    limits: str
    head: ClaimOrder
    jobs: list[ClaimOrder]


class Lanes(NamedTuple):
    """The best open gates at an instant. `bound`: the last head, if there may be gates behind it."""

    now: int
    gates: list[OpenGate]
    bound: ClaimOrder | None

    def candidates(self) -> dict[str, list[ClaimOrder]]:
        """The jobs that no gate behind these can precede, by limits."""
        by_limits: dict[str, list[ClaimOrder]] = {}
        for gate in self.gates:
            jobs = [job for job in gate.jobs if self.bound is None or job <= self.bound]
            if gate.jobs:
                by_limits.setdefault(gate.limits, []).extend(jobs)
        return {limits: sorted(jobs) for limits, jobs in by_limits.items()}

    def empty(self) -> list[str]:
        return [gate.place for gate in self.gates if not gate.jobs and gate.place is not None]

    def moved_heads(self, claimed: Collection[str]) -> list[tuple[str, ClaimOrder]]:
        """The heads that change when these jobs are claimed. Nothing depends on them while all gates are read."""
        if self.bound is None:
            return []
        first = [(gate, next((job for job in gate.jobs if job[2] not in claimed), None)) for gate in self.gates]
        return [(gate.place, job) for gate, job in first if gate.place and job is not None and job != gate.head]


class Prospect(NamedTuple):
    """Whether a claim could find something at once, or later without anything else happening; whether there are suspects."""

    at_once: bool
    later: bool
    suspects: bool


class Limits:
    """The statements of one schema."""

    def __init__(self, schema: str, doubtful: list[str]) -> None:
        self._doubtful = doubtful
        claims = load("claim", schema, slot="{slot_given}", ordinary=ROW_EACH)
        parts = {name: claims[name] for name in ("wanted", "can_run", "claimed")}
        self._sql = load("limits", schema, **parts)
        self._unseen = False  # the last claim left open gates unread, or jobs that may start

    async def prospects(self, connection: Connection, wants: Sequence[Want], now: int | None) -> list[Prospect]:
        """What there is to claim, or to wait for. Asked first, because there mostly is nothing."""
        asked = [(self._sql["prospect"], {**wanted(want), "now": now}) for want in wants]
        return [Prospect(*(await cursor.fetchall())[0]) for cursor in await pipeline(connection, asked)]

    async def claim(
        self, connection: Connection, claim: Claim, want: Want, prospect: Prospect, now: int | None
    ) -> list[Record]:
        """Claim limited jobs, inside a transaction."""
        if want.alone:
            return await self._claim_suspects(connection, claim, want, now)
        return await self._claim(connection, claim, want, now) if prospect.at_once else []

    async def _claim(self, connection: Connection, claim: Claim, want: Want, now: int | None) -> list[Record]:
        claimed: list[Record] = []
        more = await self._read_notices(connection, now)
        for _ in range(ROUNDS):
            claimed += await self._claim_open(connection, claim, want, want.limit - len(claimed), now)
            if len(claimed) >= want.limit:
                return claimed
            if more:
                more = await self._read_notices(connection, now)
            elif not await self._reopen(connection, now):
                return claimed
        self._unseen = True
        return claimed

    async def _claim_open(
        self, connection: Connection, claim: Claim, want: Want, limit: int, now: int | None
    ) -> list[Record]:
        """Claim what the open gates let through, reading more of them until it is enough."""
        claimed: list[Record] = []
        for turn in range(ROUNDS):
            look = min(LOOK, gates_for(limit) << turn)
            lanes = await self._look(connection, want, limit - len(claimed), look, now)
            if lanes is None:
                return claimed
            claimed += await self._pass(connection, claim, lanes, limit - len(claimed))
            if len(claimed) >= limit or lanes.bound is None or lanes.bound == BEHIND_ALL:
                self._unseen |= lanes.bound not in (None, BEHIND_ALL)
                return claimed
        self._unseen = True
        return claimed

    # -- what happened meanwhile ---------------------------------------------------------------------
    async def _read_notices(self, connection: Connection, now: int | None) -> bool:
        """Take our turn and read notices; returns whether there are more."""
        cursor = await connection.execute(self._sql["read_notices"], bounds(now))
        return bool((await cursor.fetchall())[0][0] >= NOTICES)

    async def _reopen(self, connection: Connection, now: int | None) -> bool:
        cursor = await connection.execute(self._sql["reopen"], bounds(now))
        return bool((await cursor.fetchall())[0][0])

    # -- gates ---------------------------------------------------------------------------------------
    async def _look(self, connection: Connection, want: Want, limit: int, look: int, now: int | None) -> Lanes | None:
        # one job more than is wanted, which tells whether another could start
        values = {**wanted(want), "now": now, "limit": max(1, limit) + 1, "look": look}
        rows = await (await connection.execute(self._sql["look"], values)).fetchall()
        return _lanes(rows, look)

    async def _pass(self, connection: Connection, claim: Claim, lanes: Lanes, limit: int) -> list[Record]:
        """Let the best through. Those that somebody else is at are passed over."""
        candidates = lanes.candidates()
        seen = [place[2] for places in candidates.values() for place in places]
        fresh = seen if len(seen) <= limit + 1 else []  # so few that all are locked with the first question
        used, ours = await self._read_usage_and_lock(connection, candidates, fresh)
        gates = _without(candidates, set(fresh) - ours)
        while True:
            passed = admit_jobs([Gate(limits, places) for limits, places in gates.items()], used, limit, lanes.now)
            fresh = [id for id in passed.ids if id not in ours]
            if not fresh:
                break
            locked = _parked_ids(await (await connection.execute(*self._lock(fresh))).fetchall())
            ours |= locked
            gates = _without(gates, set(fresh) - locked)
        self._unseen |= _leaves_some(gates, passed)
        limits_by_id = {place[2]: limits for limits, places in gates.items() for place in places}
        return await self._take(connection, claim, lanes, passed, used, limits_by_id)

    def _lock(self, ids: Iterable[str]) -> Statement:
        return self._sql["lock"], {"ids": array(sorted(ids))}

    async def _take(
        self,
        connection: Connection,
        claim: Claim,
        lanes: Lanes,
        passed: Admitted,
        used: Mapping[str, Use],
        limits_by_id: Mapping[str, str],
    ) -> list[Record]:
        statements: list[Statement] = []
        if passed.ids:
            values = {"ids": array(passed.ids), **claimer(claim, len(passed.ids)), "now": lanes.now}
            statements.append((self._sql["take"], {**values, **_slot_values(limits_by_id.values())}))
            several = [id for id in passed.ids if slot_of(limits_by_id[id]) is None]
            if uses := [(digest(key), id) for id in several for key in keys_of([limits_by_id[id]])]:
                keys, jobs = array(key for key, _ in uses), array(id for _, id in uses)
                statements.append((self._sql["use"], {"keys": keys, "jobs": jobs, "stamp": claim.stamp}))
        statements += self._start_statements(used, passed.starts, _windows(gate.limits for gate in lanes.gates))
        empty, moved = lanes.empty(), lanes.moved_heads(set(passed.ids))
        if empty or moved:  # before gates are closed: that moves their rows
            statements.append((self._sql["close_others"], {**_heads(empty, moved), "now": lanes.now}))
        if passed.closed:
            statements.append((self._sql["close"], {**_close_values(passed.closed), "now": lanes.now}))
        if not statements:
            return []
        cursors = await pipeline(connection, statements)
        return claimed_of(await cursors[0].fetchall(), self._doubtful) if passed.ids else []

    def _start_statements(
        self, used: Mapping[str, Use], after: Mapping[str, Starts], windows: Mapping[str, int]
    ) -> list[Statement]:
        """The starts as they are now, in place of those that were remembered."""
        old = {(key, at): times for key in after for at, times in used.get(key, Use()).starts}
        new = {(key, at): times for key, starts in after.items() for at, times in starts}
        gone = [place for place in old if place not in new]
        fresh = {place: times for place, times in new.items() if old.get(place) != times}
        statements: list[Statement] = []
        if gone:
            statements.append((self._sql["forget_starts"], _start_keys(gone)))
        if fresh:
            until = numbers(at + windows[key] for key, at in fresh)
            noted = {**_start_keys(fresh), "times": numbers(fresh.values()), "until": until}
            statements.append((self._sql["note_starts"], noted))
        return statements

    async def _read_usage(self, connection: Connection, limits: Iterable[str]) -> dict[str, Use]:
        return (await self._read_usage_and_lock(connection, limits, ()))[0]

    async def _read_usage_and_lock(
        self, connection: Connection, limits: Iterable[str], ids: Sequence[str]
    ) -> tuple[dict[str, Use], set[str]]:
        """What is used under these limits, and which of these jobs are parked and ours now."""
        keys = {digest(key): key for key in keys_of(limits)}
        if not keys:
            return {}, set()
        asked = {"keys": array(keys)}
        statements: list[Statement] = [(self._sql["running"], asked), (self._sql["starts"], asked)]
        if ids:
            statements.append(self._lock(ids))
        running, starts, *locking = await pipeline(connection, statements)
        remembered: dict[str, list[tuple[int, int]]] = {}
        for key, at, times in await starts.fetchall():
            remembered.setdefault(key, []).append((at, times))
        counts = await running.fetchall()
        used = {keys[key]: Use(count, tuple(remembered.get(key, ()))) for key, count in counts}
        return used, {id for cursor in locking for id in _parked_ids(await cursor.fetchall())}

    # -- suspects ------------------------------------------------------------------------------------
    async def _claim_suspects(self, connection: Connection, claim: Claim, want: Want, now: int | None) -> list[Record]:
        if await self._suspects(connection, want, 1, now) is None:
            return []
        await self._read_notices(connection, now)
        lanes = await self._suspects(connection, want, want.limit, now)
        return [] if lanes is None else await self._pass(connection, claim, lanes, want.limit)

    async def _suspects(self, connection: Connection, want: Want, limit: int, now: int | None) -> Lanes | None:
        values = {**wanted(want), "now": now, "limit": max(1, limit)}
        rows = await (await connection.execute(self._sql["look_at_suspects"], values)).fetchall()
        return _lanes(rows, None)

    # -- the outlook ---------------------------------------------------------------------------------
    async def opening(self, connection: Connection, want: Want, now: int | None) -> int | None:
        """How long until a wanted job may start. 0: one may now, or may not have been seen; None: not before another has
        ended."""
        unseen, self._unseen = self._unseen, False
        if unseen:
            return 0
        if want.alone:
            lanes = await self._suspects(connection, want, 1, now)
            at, gates = (lanes.now, list(lanes.candidates())) if lanes is not None else (0, [])
        else:
            values = {**wanted(want), "now": now, "look": LOOK}
            rows = await (await connection.execute(self._sql["openings"], values)).fetchall()
            at, gates = (rows[0][0], list({limits for _, limits in rows})) if rows else (0, [])
        used = await self._read_usage(connection, gates)
        why = [why_closed(limits, used, at) for limits in gates]
        opening = [at if each is None else each.opens_at for each in why]
        return min((max(0, each - at) for each in opening if each is not None), default=None)

    # -- upkeep --------------------------------------------------------------------------------------
    async def mend(self, connection: Connection, now: int | None) -> None:
        """Should word have been lost, or an older version have worked here: put it right, inside a transaction."""
        await connection.execute(self._sql["turn"])
        await connection.execute(self._sql["mend"], {"now": now, "long": LONG, "look": LOOK})


def _lanes(rows: Sequence[Sequence[Any]], look: int | None) -> Lanes | None:
    """The gates in these rows. `look`: as many were asked for; None: all that there are."""
    if not rows:
        return None
    gates: dict[tuple[str | None, str], OpenGate] = {}
    for _, place, limits, head_urgency, head_rank, head, urgency, rank, id in rows:
        gate = gates.setdefault((place, limits), OpenGate(place, limits, (head_urgency, head_rank, head), []))
        if id is not None:
            gate.jobs.append((urgency, rank, id))
    bound = max(gate.head for gate in gates.values()) if len(gates) == look else None
    return Lanes(rows[0][0], list(gates.values()), bound)


def _parked_ids(rows: Sequence[Sequence[Any]]) -> set[str]:
    return {id for id, parked in rows if parked}


def _without(gates: Mapping[str, list[ClaimOrder]], missed: set[str]) -> dict[str, list[ClaimOrder]]:
    if not missed:
        return dict(gates)
    return {limits: [place for place in places if place[2] not in missed] for limits, places in gates.items()}


def _leaves_some(gates: Mapping[str, list[ClaimOrder]], passed: Admitted) -> bool:
    """Whether an open gate has jobs left."""
    taken = set(passed.ids)
    return any(places and places[-1][2] not in taken for limits, places in gates.items() if limits not in passed.closed)


def _slot_values(texts: Iterable[str]) -> dict[str, Any]:
    """Gates, and the only key of each."""
    slots = {digest(limits): slot for limits in texts if (slot := slot_of(limits)) is not None}
    return {"gates": array(slots), "slots": array(slots.values())}


def _heads(empty: Sequence[str], moved: Sequence[tuple[str, ClaimOrder]]) -> dict[str, Any]:
    return {
        "empty": names(tuple(empty)),
        "moved": names(tuple(place for place, _ in moved)),
        "urgencies": numbers(job[0] for _, job in moved),
        "ranks": numbers(job[1] for _, job in moved),
        "ids": array(job[2] for _, job in moved),
    }


def _close_values(closed: Mapping[str, Closed]) -> dict[str, Any]:
    return {
        "gates": array(digest(limits) for limits in closed),
        "keys": array(digest(why.key) for why in closed.values()),
        "opens": numbers(why.opens_at for why in closed.values()),
    }


def _start_keys(places: Iterable[tuple[str, int]]) -> dict[str, Any]:
    listed = list(places)
    return {"keys": array(digest(key) for key, _ in listed), "ats": numbers(at for _, at in listed)}


def _windows(texts: Iterable[str]) -> dict[str, int]:
    """The longest window of each key under a rate."""
    longest: dict[str, int] = {}
    for limit in (limit for text in texts for limit in limits_of(text)):
        longest[limit.key] = max(longest.get(limit.key, 0), limit.window or 0)
    return longest
