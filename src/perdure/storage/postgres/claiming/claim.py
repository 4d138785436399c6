"""Claims the best jobs of all wanted lanes.

A lane is the ready jobs of one queue, task and routing key; the claim index keeps each lane in claim order.

**The mark.** The index entry of a claimed job stays until vacuum removes it, and vacuum cannot do that while any session
holds an old snapshot. A claim that began at the head of its lane would then read the entries of all jobs claimed before. So
a worker that claims full batches remembers how far it came in each lane and continues from there. Jobs before the mark (a
late commit, a promoted, retried or more urgent job) and in other lanes are found by the next claim from the start: at once
when a claim comes back short, and at least every second. Where a claim from the start is slow because of such entries, it is
made only so often that it takes a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from perdure.core.job import ANY
from perdure.core.record import Record
from perdure.storage.contract import Claim, Want

from ..connection.server import Connection, Cursor, Statement, pipeline
from ..queries import load
from ..reading.records import array, claimed_of, digest, names, numbers, route_of

MARKED_FROM = 50  # smaller claims begin at the start: they wade less than they could miss
ROW_EACH = "false"  # no job is checked for being ordinary
START_EVERY = 1.0
START_SHARE = 20  # a claim from the start may take one part in so many of the time
ROTTEN, ROTTEN_PER_JOB = 0.05, 0.000_2  # seconds on the server: a claim that took longer has waded

LANES = ("all_lanes", "named_lanes", "marked_lanes")  # the ways to find the lanes of a claim
_UNMARKED = dict.fromkeys(
    ("lane_queues", "lane_tasks", "lane_routes", "mark_gates", "urgencies", "ranks", "mark_ids")
)  # no marks

Lane = tuple[str, ...]  # queue, task, route; and of limited jobs their gate
Mark = tuple[int, int, str]  # urgency, rank, id of the last job claimed there


class Outlook(NamedTuple):
    """What a claim tells beside its jobs; `took` are the seconds that the server needed."""

    next_due: int | None
    suspects: bool
    took: float


class Marks:
    """How far one worker came, want by want."""

    def __init__(self) -> None:
        self._lanes: dict[Want, dict[Lane, Mark]] = {}
        self._until: dict[Want, float] = {}

    def of(self, want: Want, now: float) -> Mapping[Lane, Mark] | None:
        """The lanes to go on in, None to begin at the start."""
        if want.limit < MARKED_FROM or now >= self._until.get(_kind(want), 0.0):
            return None
        return self._lanes.get(_kind(want)) or None

    def note(self, want: Want, claimed: Sequence[Record], took: float, *, from_start: bool) -> None:
        if want.limit < MARKED_FROM:
            return
        kind, now = _kind(want), monotonic()
        rotten = took > ROTTEN + ROTTEN_PER_JOB * want.limit
        full = len(claimed) >= want.limit
        lanes = self._lanes.setdefault(kind, {})
        if not rotten and (from_start or not full):
            lanes.clear()
        if from_start and (full or rotten):
            self._until[kind] = now + max(START_EVERY, START_SHARE * took)
        if not full and not rotten:
            return
        furthest = {(record.queue, record.task, record.routing_key, record.limits): record for record in claimed}
        for (queue, task, key, limits), last in furthest.items():
            gate = () if limits is None else (digest(limits),)
            lanes[queue, task, route_of(key), *gate] = (-1 - last.priority, last.rank, last.id)


class Claims:
    """The statements of one schema, and the marks of whoever claims through this store."""

    def __init__(self, schema: str, doubtful: list[str]) -> None:
        self._doubtful = doubtful
        self._sql = load("claim", schema, ordinary=ROW_EACH, line_lock="")
        locking = load("claim", schema, ordinary=ROW_EACH, line_lock="FOR UPDATE SKIP LOCKED")
        self._take = {
            (lanes, picked): load(
                "claim",
                schema,
                lanes=(locking if picked == "locked" else self._sql)[lanes],
                picked=self._sql[picked],
                ordinary=ROW_EACH,
            )["take"]
            for lanes in LANES
            for picked in ("locked", "merged")
        }
        self._left = {
            lanes: load("claim", schema, lanes=self._sql[lanes], ordinary=ROW_EACH)["left"]
            for lanes in ("all_lanes", "named_lanes")
        }
        self.marks = Marks()

    def promote(self, limit: int, now: int | None) -> Statement:
        return self._sql["promote"], {"limit": limit, "now": now}

    async def claim(
        self, connection: Connection, before: Sequence[Statement], claim: Claim, chunk: int, now: int | None
    ) -> tuple[list[Cursor], dict[int, list[Record]], Outlook, set[str]]:
        """Run what comes before, promote what is due, take what is wanted and look out, in one round trip. Gives the
        cursors of what came before, the jobs by the place of the want, the outlook, and the queues of promoted jobs.
        Limited jobs are left out."""
        places = [place for place, want in enumerate(claim.wants) if want.limit > 0 and not want.limited]
        wants = [claim.wants[place] for place in places]
        began = monotonic()
        marks = [self.marks.of(want, began) for want in wants]
        takes = [self._taking(claim, want, mark, now) for want, mark in zip(wants, marks, strict=True)]
        plain = [want for want in claim.wants if not want.limited]
        outlooks = [self.outlook(want, now) for want in plain or claim.wants[:1]]
        # asked with the claim, so that a short one is followed by another only if that finds something
        asked = [
            (self._left[lanes_from_start(want)], {**wanted(want), "limit": 1, "now": now})
            for want, mark in zip(wants, marks, strict=True)
            if mark is None and not want.alone
        ]
        cursors = await pipeline(connection, [*before, self.promote(chunk, now), *takes, *asked, *outlooks])
        earlier, promoted = cursors[: len(before)], cursors[len(before)]
        taken = cursors[len(before) + 1 : len(before) + 1 + len(takes)]
        left = iter(cursors[len(before) + 1 + len(takes) :])
        outlook = await read_outlook(cursors[len(cursors) - len(outlooks) :])
        outlook = outlook if plain else outlook._replace(suspects=False)
        claimed: dict[int, list[Record]] = {}
        for place, want, mark, cursor in zip(places, wants, marks, taken, strict=True):
            found = claimed_of(await cursor.fetchall(), self._doubtful)
            if mark is None and not want.alone and await _is_true(next(left)) and len(found) < want.limit:
                found += await self.claim_passed_over(connection, claim, want, want.limit - len(found), now)
            self.marks.note(want, found, outlook.took, from_start=mark is None)
            if mark is not None:
                found += await self.claim_before_marks(connection, claim, want, want.limit - len(found), now)
            claimed[place] = found
        return earlier, claimed, outlook, {queue for (queue,) in await promoted.fetchall()}

    def outlook(self, want: Want, now: int | None) -> Statement:
        return self._sql["outlook"], {**wanted(want), "limited": want.limited, "now": now}

    async def claim_passed_over(
        self, connection: Connection, claim: Claim, want: Want, limit: int, now: int | None
    ) -> list[Record]:
        """Jobs behind those that another claimer had locked when the lanes were merged."""
        values = {**wanted(want), **claimer(claim, limit), "now": now}
        cursor = await connection.execute(self._take[lanes_from_start(want), "locked"], values)
        return claimed_of(await cursor.fetchall(), self._doubtful)

    async def claim_before_marks(
        self, connection: Connection, claim: Claim, want: Want, limit: int, now: int | None
    ) -> list[Record]:
        """Jobs in other lanes, or before the marks, after a claim behind marks came back short."""
        if limit <= 0 or self.marks.of(want, monotonic()) is not None:
            return []
        return await self.claim_passed_over(connection, claim, want, limit, now)

    def _taking(self, claim: Claim, want: Want, marks: Mapping[Lane, Mark] | None, now: int | None) -> Statement:
        values: dict[str, Any] = {**wanted(want), **claimer(claim, want.limit), "now": now}
        if want.alone:
            return self._sql["take_suspects"], values
        if not marks:
            return self._take[lanes_from_start(want), "merged"], values
        values |= marked(marks)
        return self._take["marked_lanes", "locked" if len(marks) == 1 else "merged"], values


def lanes_from_start(want: Want) -> str:
    """How the lanes are found where there are no marks."""
    return "all_lanes" if want.queues is None else "named_lanes"


def marked(marks: Mapping[Lane, Mark] | None) -> dict[str, Any]:
    """Marks as the statements are told of them."""
    if not marks:
        return _UNMARKED
    queues, tasks, routes, *gates = zip(*marks, strict=True)
    urgencies, ranks, ids = zip(*marks.values(), strict=True)
    lanes = {"lane_queues": names(queues), "lane_tasks": names(tasks), "lane_routes": names(routes)}
    places = {"urgencies": numbers(urgencies), "ranks": numbers(ranks), "mark_ids": array(ids)}
    return {**lanes, **places, "mark_gates": array(gates[0]) if gates else None}


async def _is_true(cursor: Cursor) -> bool:
    return bool((await cursor.fetchall())[0][0])


async def read_outlook(cursors: Sequence[Cursor]) -> Outlook:
    next_due: int | None = None
    suspects, took = False, 0.0
    for cursor in cursors:
        row = await cursor.fetchone()
        assert row is not None
        next_due = None if row[0] is None else max(0, int(row[0]))
        suspects, took = suspects or row[1], row[2]
    return Outlook(next_due, suspects, took)


def wanted(want: Want) -> dict[str, Any]:
    return {
        "queues": None if want.queues is None else names(want.queues),
        "tasks": None if want.tasks is None else names(want.tasks),
        "route": None if want.routing is ANY else route_of(want.routing),
    }


def claimer(claim: Claim, limit: int) -> dict[str, Any]:
    return {"stamp": claim.stamp, "worker": claim.worker, "limit": limit}


def _kind(want: Want) -> Want:
    """What is wanted, however many of it."""
    return Want(0, want.queues, want.tasks, want.routing, want.alone)
