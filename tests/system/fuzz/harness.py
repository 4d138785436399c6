"""Bad values in every stored field, and what must hold in spite of them, whatever the store.

A run does rounds. Each fills the store with rows in every table while no worker runs, spoils about half of them, starts a
worker, spoils more, and then asks:

- a job that is enqueued now (the canary) succeeds within 2 s; on a busy machine, within five times what it takes in a
  round without bad values;
- every listing, of the app and of the command line, raises nothing, or one of our own errors;
- a schedule that is put now fires, and an event that is published now is accepted;
- every job that was not spoiled ends as it should;
- no job has more attempts than it can honestly have;
- no log line comes twice within a minute.

At the end of a round everything is inspected, and each mutation is counted as set aside, tolerated or refused.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice, pairwise, zip_longest
from time import monotonic

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import LOSSES_ALLOWED
from perdure.core.record import Record
from perdure.storage.contract import Storage, Unreadable
from perdure.upkeep import upkeep

from .looks import look_at_everything, look_from_command_line
from .report import ASIDE, MISSING, REFUSED, TOLERATED, Outcome, Report
from .target import Missing, Mutation, Refused, Target
from .world import GONE, PAUSED, WORKED_ON, Jobs, Scene, fill

CANARY_WITHIN = 2.0  # seconds
CANARIES = 3
BUSY_MACHINE = 5  # times what the canary takes in a round without bad values
SCHEDULE_WITHIN = 40.0  # seconds: an inspection makes a spoiled index again, and a scheduler looks every ten seconds
ENDS_WITHIN = 40.0  # seconds that readable jobs of a round may take in all
VICTIMS = 200  # jobs that are tried for a field that not every job has
ALONE = 24  # times that a single mutation is tried, on jobs of different kinds
KINDS = 12  # jobs of a round for each mutation: one of this many kinds, at least
# attempts of a job in one round: those that fail, those that a lost worker ends, and the one that succeeds
HONEST_ATTEMPTS = 3 + LOSSES_ALLOWED + 1


class Failure(AssertionError):
    """Something does not hold. `names`: the mutations of the round."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = names


# ---- the log ---------------------------------------------------------------------------------------
class Lines(logging.Handler):
    """Remembers every line, to find those that come too often."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: dict[str, list[float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.setdefault(record.getMessage(), []).append(monotonic())

    def too_often(self) -> list[str]:
        return [
            line for line, times in self.seen.items() if any(later - earlier < 60 for earlier, later in pairwise(times))
        ]


@contextmanager
def listen_to_log() -> Iterator[Lines]:
    lines = Lines()
    logger = logging.getLogger("perdure")
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)


# ---- a run -----------------------------------------------------------------------------------------
async def run(target: Target, *, seed: int, count: int, only: Collection[str] | None = None) -> Report:
    """Try `count` mutations, or only those of these names. `Failure` says what does not hold."""
    chance = random.Random(seed)
    scene = Scene(target.url)
    fuzzer = Fuzzer(target, scene, chance)
    pauses = upkeep.ROUND
    upkeep.ROUND = 0.2
    try:
        todo = await fuzzer.plan(count, only)
        for begin in range(0, len(todo), target.at_once):
            mutations = todo[begin : begin + target.at_once]
            try:
                with listen_to_log() as lines:  # of one worker: the next one tells its own troubles
                    await fuzzer.round(mutations)
                assert not lines.too_often(), f"logged more than once a minute: {lines.too_often()[:5]}"
            except Exception as error:
                names = sorted({mutation.name for mutation in mutations})
                raise Failure(f"{type(error).__name__}: {error}", names) from error
    finally:
        upkeep.ROUND = pauses
        target.close()
        await scene.app.close()
    return fuzzer.report


class Fuzzer:
    """The rounds of one run."""

    def __init__(self, target: Target, scene: Scene, chance: random.Random) -> None:
        self._target = target
        self._scene = scene
        self._chance = chance
        self._rounds = 0
        self.report = Report()

    async def plan(self, count: int, only: Collection[str] | None) -> list[Mutation]:
        """The mutations to try, in order."""
        await self._round_without_bad_values()
        every = await self.every()
        if only is None:
            return drawn(every, count, self._chance)
        return chosen(every, only) * (ALONE if len(only) == 1 else 1)

    async def every(self) -> list[Mutation]:
        """Every mutation that there is, of a store with rows in every table."""
        await self._fill(await self._scene.app._runtime.storage(), 2)
        return await asyncio.to_thread(self._target.mutations)

    async def _round_without_bad_values(self) -> None:
        """What the canary takes beside as many jobs."""
        store = await self._scene.app._runtime.storage()
        jobs = await self._fill(store, 2 + self._target.at_once // KINDS)
        async with self._worker():
            for queue in PAUSED:
                await store.pause(queue, False)
            self.report.usual = await self._scene.canary()
            await _all_ended(store, jobs, set())

    async def round(self, mutations: Sequence[Mutation]) -> None:
        self._rounds += 1
        store = await self._scene.app._runtime.storage()
        jobs = await self._fill(store, 2 + len(mutations) // KINDS)
        aside = set(await store.unreadable(limit=1_000_000))
        spoil = Spoil(jobs, self._chance, self.report)
        first = [mutation for mutation in mutations if mutation.table in self._target.short_lived]
        rest = [mutation for mutation in mutations if mutation.table not in self._target.short_lived]
        half = len(rest) // 2
        await spoil.write([*first, *rest[:half]])
        async with self._worker():
            await spoil.write(rest[half:])
            before = await _attempts(store, jobs)
            for queue in PAUSED:
                await store.pause(queue, False)
            await self._check_canary()
            ids = [job.id for job in jobs.all()]
            await look_at_everything(self._scene.app, ids)
            await look_from_command_line(self._target.url, sorted(spoil.jobs) or ids)
            await self._scene.app.publish("news", 1)
            await self._scene.fire_schedule(f"pulse {self._rounds}", SCHEDULE_WITHIN)
            await _all_ended(store, jobs, spoil.jobs)
            await look_at_everything(self._scene.app, ids)
        self._check_attempts(before, await _attempts(store, jobs), spoil)
        spoil.count([row for row in await _inspected(store) if row not in aside])

    def _worker(self):
        return self._scene.app.worker(concurrency=20, poll=0.2, queues=[*WORKED_ON])

    async def _fill(self, store: Storage, number: int) -> Jobs:
        """Fill the store; every table has rows then."""
        await self._scene.put_schedules([f"tick {self._rounds} {n}" for n in range(6)])
        jobs = await fill(store, self._target, number)
        rows = await asyncio.to_thread(self._target.rows)
        empty = [table for table, count in rows.items() if not count and table not in self._target.left_alone]
        assert not empty, f"nothing can be spoiled in empty tables: {empty}"
        return jobs

    async def _check_canary(self) -> None:
        """A canary that is late on a busy machine may be sent again: what bad values stop stays stopped."""
        within = max(CANARY_WITHIN, BUSY_MACHINE * self.report.usual)
        for _ in range(CANARIES):
            took = await self._scene.canary()
            self.report.canaries.append(took)
            if took < within:
                return
        raise AssertionError(f"{CANARIES} canaries took longer than {within:.1f} s each, the last one {took:.1f} s")

    def _check_attempts(self, before: dict[str, int], after: dict[str, int], spoil: Spoil) -> None:
        """A job that cannot be run, or not be reported, must not be claimed again and again."""
        for id, attempts in after.items():
            more = max(attempts - before.get(id, 0), self._scene.runs[id])
            self.report.most_attempts = max(self.report.most_attempts, more)
            assert more <= HONEST_ATTEMPTS, f"job {id} ({spoil.by_job.get(id)}) had {more} attempts in one round"


class Spoil:
    """The mutations of a round, as they are written."""

    def __init__(self, jobs: Jobs, chance: random.Random, report: Report) -> None:
        self._victims = [job.id for job in jobs.all()]
        chance.shuffle(self._victims)
        self._report = report
        self._written: list[tuple[Mutation, str | None]] = []
        self.by_job: dict[str, str] = {}  # jobs that are spoiled, and by which mutation

    @property
    def jobs(self) -> set[str]:
        return set(self.by_job)

    async def write(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            try:
                row = await asyncio.to_thread(self._write, mutation)
            except (Refused, Missing) as refused:
                fate = REFUSED if isinstance(refused, Refused) else MISSING
                self._report.outcomes.append(Outcome(mutation, fate))
                continue
            if row is not None:
                self.by_job[row] = mutation.name
            self._written.append((mutation, row))

    def _write(self, mutation: Mutation) -> str | None:
        """Write into the row of a job that is not spoiled yet, if it is a row of a job."""
        if not mutation.of_job:
            return mutation.write(self._victims[-1])
        for job in self._victims[-VICTIMS:][::-1]:
            try:
                row = mutation.write(job)
            except Missing:
                continue
            self._victims.remove(job)
            self.by_job[job] = mutation.name
            return row
        raise Missing

    def count(self, aside: Sequence[Unreadable]) -> None:
        """Count what became of them, by what was set aside in this round."""
        ids = {row.id for row in aside}
        tables = Counter(row.where for row in aside if row.where != "jobs")
        for mutation, row in self._written:
            is_aside = row in ids or tables[mutation.table] > 0
            if row not in ids:
                tables[mutation.table] -= is_aside
            self._report.outcomes.append(Outcome(mutation, ASIDE if is_aside else TOLERATED))


def chosen(plan: Sequence[Mutation], names: Collection[str]) -> list[Mutation]:
    """The mutations of these names."""
    found = [mutation for mutation in plan if mutation.name in names]
    missing = set(names) - {mutation.name for mutation in found}
    assert not missing, f"there is no such mutation: {sorted(missing)}"
    return found


def drawn(plan: Sequence[Mutation], count: int, chance: random.Random) -> list[Mutation]:
    """So many mutations: of every field one, then of every field another, until all were drawn; then all again."""
    fields: dict[str, list[Mutation]] = {}
    for mutation in chance.sample(plan, len(plan)):
        fields.setdefault(mutation.where, []).append(mutation)
    in_turn = [each for turn in zip_longest(*fields.values()) for each in turn if each is not None]
    return [*islice(cycle(in_turn), count)]


# ---- what became of the jobs -----------------------------------------------------------------------
async def _inspected(store: Storage) -> list[Unreadable]:
    """Inspect everything; gives all that was set aside."""
    quiet = 0
    while quiet < 3:
        quiet = 0 if await store.inspect(10_000) else quiet + 1
    return await store.unreadable(limit=1_000_000)


async def _all_ended(store: Storage, jobs: Jobs, spoiled: set[str]) -> None:
    """Every job that was not spoiled, and needs none that was, has ended as it should."""

    def sound(id: str) -> bool:
        return id not in spoiled and jobs.needs.get(id, set()).isdisjoint(spoiled)

    async def ends() -> dict[str, State]:
        others = await _with_other_policies(store, jobs)
        return {id: state for id, state in jobs.ends().items() if sound(id) and id not in others}

    came_back = [id for id in jobs.held_by_the_gone() if id not in spoiled]
    until = monotonic() + ENDS_WITHIN
    left = await _not_yet(store, [*await ends()], came_back)
    while left and monotonic() < until:
        await asyncio.sleep(0.05)
        await store.inspect(500)  # as upkeep does, only sooner
        left = await _not_yet(store, [*await ends()], came_back)
    assert not left, f"{len(left)} jobs that were not spoiled have not ended: {left[:5]}"
    wanted = await ends()
    for id, record in zip(wanted, await _records(store, [*wanted]), strict=True):
        assert record is not None, f"job {id} was not spoiled and is gone"
        assert record.state is wanted[id], f"job {id} was not spoiled and is {record.state}: {record.reason}"


async def _with_other_policies(store: Storage, jobs: Jobs) -> list[str]:
    """Jobs that share a row of policies which was spoiled: they may be retried where one failure should have been enough."""
    dying = await _records(store, [job.id for job in jobs.dying])
    return [record.id for record in dying if record is not None and record.max_attempts != 1]


async def _not_yet(store: Storage, wanted: Sequence[str], came_back: Sequence[str]) -> list[tuple[str, object]]:
    """Those that have not ended, or are still held by the worker that is gone."""
    ended = [record and record.state in FINAL for record in await _records(store, wanted)]
    back = [record and record.leased_by != GONE for record in await _records(store, came_back)]
    left = [id for id, done in zip([*wanted, *came_back], [*ended, *back], strict=True) if not done]
    return [
        (id, record and (record.state, record.task, record.queue, record.reason, record.limits))
        for id, record in zip(left, await _records(store, left), strict=True)
    ]


async def _attempts(store: Storage, jobs: Jobs) -> dict[str, int]:
    records = await _records(store, [job.id for job in jobs.all()])
    return {record.id: record.attempt for record in records if record is not None}


async def _records(store: Storage, ids: Sequence[str]) -> list[Record | None]:
    found: list[Record | None] = []
    for begin in range(0, len(ids), store.chunk):
        found += await store.get(ids[begin : begin + store.chunk])
    return found
