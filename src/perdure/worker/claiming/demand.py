"""Decides what to claim: how many jobs, of which tasks and queues, and when a claim would be useless.

It asks for one job per free slot. If jobs are so short that slots would be idle during the round trip, it asks for a bounded
number beyond that. A suspect runs with nothing beside it, so the worker finishes everything else before it asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from ...core.job import Routing
from ...core.record import Record
from ...storage.contract import Claim, Storage, Want
from ..completion_queue import End
from ..health.store_trouble import StoreRecovery
from ..leases.held_jobs import HeldJobs
from ..running.attempt import Attempt
from ..running.slots import Slots
from .demand_limited import LimitedDemand
from .demand_per_task import PerTaskDemand
from .parent_results import Followers

if TYPE_CHECKING:
    from ...tasks.definition import TaskDefinition

AHEAD = 0.030  # seconds of work claimed beyond the free slots
FASTER, SLOWER = 0.6, 0.3  # weights of a new rate that is higher or lower than the smoothed one
EMPTY_AFTER = 0.25  # seconds that suspects wait before the worker claims nothing else, so that they can run alone


_limits: Callable[[Record], str | None] = attrgetter("limits")


class Demand:
    """Reads from the slots what runs and waits, and remembers what the store had for recent claims."""

    def __init__(
        self,
        *,
        store: Storage,
        held: HeldJobs,
        slots: Slots,
        followers: Followers,
        recovery: StoreRecovery,
        per_task: PerTaskDemand | None,
        limited: LimitedDemand,
        queues: tuple[str, ...] | None,
        tasks: tuple[str, ...] | None,
        routing: Routing,
    ) -> None:
        self._store = store
        self._held = held
        self._slots = slots
        self._followers = followers
        self._recovery = recovery
        self._per_task = per_task
        self._limited = limited
        self._queues = queues
        self._tasks = tasks
        self._routing = routing
        self._more = True  # the store may have jobs for this worker
        self._under_way: dict[Claim, int] = {}  # claims without an answer yet, and the slots that their jobs would fill
        self._exchange_took = 0.005  # seconds, smoothed
        self._alone: Attempt | None = None  # a suspect that runs here
        # a worker that has nothing to do yet takes a suspect at once
        self._suspects_since: float | None = 0.0
        self._alone_limited = True  # claims for suspects alternate between those under limits and the others
        self._ran_dry = False  # the last claim returned fewer jobs without limits than asked for
        self._skipped_limited = True  # the only free slot went to jobs without limits
        self._rate = 0.0  # jobs a second, the time of exchanges included
        self._grown = 0  # jobs that the slots would finish within AHEAD, judged by the last feed
        self._rate_from = (monotonic(), 0)
        self._in_batches = 0  # attempts that ended as items of batches

    # -- what the claim loop reports -----------------------------------------------------------------
    def reset(self) -> None:
        """The claim loop starts, or starts again: the claims that were under way are unknown."""
        self._under_way.clear()
        if not self.runs_alone:
            self._alone = None

    def assume_more(self) -> None:
        """The store may have jobs for this worker."""
        self._more = True
        self._limited.assume_more()
        if self._per_task is not None:
            self._per_task.assume_more()

    def note_freed(self, freed: Collection[TaskDefinition | None]) -> None:
        """Attempts of these tasks ended, or (None) attempts under a limit: there may be room for jobs that were left out."""
        for definition in freed:
            if definition is None:
                self._limited.assume_more()
                self._more = True
            elif self._per_task is not None:
                self._per_task.note_freed(definition)
                self._more = True

    def begin_claim(self, claim: Claim) -> None:
        self._under_way[claim] = self._slots_for(claim)

    def end_claim(self, claim: Claim) -> None:
        """The claim was answered, or nobody waits for its answer any more."""
        self._under_way.pop(claim, None)

    def note_suspect(self, attempt: Attempt) -> None:
        """A suspect was claimed: it runs alone."""
        self._alone = attempt

    def note_suspects(self) -> None:
        """The store has suspects that this worker could run."""
        if self._suspects_since is None:
            self._suspects_since = monotonic()
            self._more = True

    def note_exchange(self, seconds: float, batch: Sequence[End]) -> None:
        """An exchange took this long, and the store confirmed these ends."""
        self._exchange_took = 0.8 * self._exchange_took + 0.2 * seconds
        self.note_confirmed(batch)

    def note_confirmed(self, batch: Sequence[End]) -> None:
        """The store confirmed these ends: measure the rate."""
        confirmed = self._held.confirmed
        if self._per_task is not None:  # the rate of batches says nothing about other jobs
            self._in_batches += sum(1 for attempt, _ in batch if attempt.batch is not None)
            confirmed -= self._in_batches
        now = monotonic()
        since, before = self._rate_from
        if now - since >= 0.005:
            rate = (confirmed - before) / (now - since)
            self._rate += (FASTER if rate > self._rate else SLOWER) * (rate - self._rate)
            self._rate_from = (now, confirmed)

    def measure_last_feed(self) -> None:
        """Slots that finished everything they got last may get up to twice as many next time, if they were that fast. If
        some handlers still run, nothing is known: short jobs say little about long ones beside them."""
        since, jobs = self._slots.last_feed
        fast = jobs / max(monotonic() - since, 0.000_01) * AHEAD
        self._grown = 0 if self._slots.busy else int(min(2 * jobs, fast))

    # -- whether to ask ------------------------------------------------------------------------------
    @property
    def wants_jobs(self) -> bool:
        """There is room for jobs and no reason to wait: claims should be answered."""
        return (
            self._is_claiming
            and self._slots.running + self._slots.waiting < self._slots.concurrency
            and not self.runs_alone
            and (self._per_task is None or self._per_task.has_room(self._free(asked=False)))
        )

    @property
    def may_get_more(self) -> bool:
        """The store may have jobs, and the slots have started at least half of what was claimed ahead."""
        return self._more and self._slots.waiting <= self.ahead // 2

    @property
    def _is_claiming(self) -> bool:
        return self._slots.accepting and not self._recovery.under_way

    @property
    def runs_alone(self) -> bool:
        return self._alone is not None and self._slots.busy

    @property
    def ahead(self) -> int:
        """How many unstarted jobs to hold for the slots, judged by the recent rate and the last feed. At most one chunk
        for each exchange that may be under way, and one more for the slots to work on meanwhile."""
        if self._limited.flowing and not self._limited.ahead:
            return 0
        return min(
            (self._store.exchanges_in_flight + 1) * self._store.chunk,
            max(int(self._rate * (AHEAD + self._exchange_took)), self._grown),
        )

    def has_wants(self, *, everyone: bool) -> bool:
        """Whether there is anything to claim. `everyone`: also for tasks that had no job at the last claim."""
        if not self._may_claim():
            return False
        free = self._free()
        if (free + self.ahead if self._limited.ahead else free) > 0 and self._limited.open():
            return True
        if self._per_task is None:
            return free + self.ahead > 0
        return bool(self._per_task.wants(free + self.ahead, free, self._under_way, everyone=everyone))

    def _free(self, *, asked: bool = True) -> int:
        """Slots for which no job is here or (`asked`) claimed; negative when there are more jobs than slots."""
        slots = self._slots
        taken = (
            slots.running + slots.waiting + self._followers.waiting + (sum(self._under_way.values()) if asked else 0)
        )
        return slots.concurrency - taken - (slots.batches.collecting if self._per_task is not None else 0)

    def _may_claim(self) -> bool:
        if self._alone is not None and (self._alone.reported or not self._held.holds(self._alone)):
            self._alone = None
        if not self._is_claiming or self._alone is not None:
            return False
        if self._suspects_since is None or (not self._slots.busy and not self._under_way):
            return True
        return monotonic() - self._suspects_since <= EMPTY_AFTER

    # -- what to ask for -----------------------------------------------------------------------------
    def wants(self) -> tuple[Want, ...]:
        """What to ask for now; empty when there is no room."""
        if not self._may_claim():
            return ()
        if self._suspects_since is not None and not self._slots.busy and not self._under_way:
            self._suspects_since = None
            self._alone_limited = not self._alone_limited
            return (Want(1, self._queues, self._tasks, self._routing, True, self._alone_limited),)
        free = self._free()
        demand = min(free + self.ahead, self._store.chunk)
        share = demand if self._limited.ahead else min(free, demand)
        limited = self._limited.want(self._limited_share(share))
        if limited is None:
            return self._wants_without_limits(demand, free)
        return (*self._wants_without_limits(demand - limited.limit, free - limited.limit), limited)

    def _limited_share(self, slots: int) -> int:
        """How many of these slots are for jobs under limits: half, or all but one if there were no other jobs lately. A
        single slot is theirs every other time."""
        self._skipped_limited = slots == 1 and not self._skipped_limited
        if slots == 1:
            return int(not self._skipped_limited)
        return slots - 1 if self._ran_dry and self._limited.flowing else -(-slots // 2)

    def _wants_without_limits(self, demand: int, free: int) -> tuple[Want, ...]:
        if self._per_task is not None:
            self._per_task.next_turn()
            return self._per_task.wants(demand, free, self._under_way, everyone=True)
        return (Want(demand, self._queues, self._tasks, self._routing),) if demand > 0 else ()

    def _slots_for(self, claim: Claim) -> int:
        """How many slots a claim's jobs would fill."""
        return self._per_task.slots(claim) if self._per_task is not None else sum(want.limit for want in claim.wants)

    def learn(self, claim: Claim, records: Sequence[Record]) -> None:
        """Learn from the jobs that a claim returned whether there may be more."""
        if claim.wants[0].alone:
            self._more = True
            return
        if claim.wants[-1].limited:
            returned = len(records) - [*map(_limits, records)].count(None)
            more = self._limited.learn(claim.wants[-1], returned)
            claim = msgspec.structs.replace(claim, wants=claim.wants[:-1])
            if returned == len(records):
                records = []
            elif returned:
                records = [record for record in records if record.limits is None]
        else:
            more = self._skipped_limited and self._limited.open()
        if not claim.wants:
            self._ran_dry = False  # nothing else was asked for
        elif self._per_task is None:
            self._ran_dry = len(records) < claim.wants[0].limit
        else:
            self._ran_dry = not self._per_task.learn(claim, records)
        self._more = more or not self._ran_dry
