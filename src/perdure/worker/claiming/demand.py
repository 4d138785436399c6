"""What to claim: how many jobs, of which kinds, and when there is no use in asking.

It asks for the free slots and, for jobs so short that the round trip would idle the slots, for a bounded number beyond.
Suspects run with nothing beside them, so the worker empties itself before it asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from ...core.job import Routing
from ...core.lifecycle import Change
from ...core.record import Record
from ...storage.contract import Claim, Storage, Want
from ..running.attempt import Attempt
from .demand_limited import LimitedDemand
from .demand_per_task import PerTaskDemand

if TYPE_CHECKING:
    from ..running.slots import Slots

AHEAD = 0.030  # seconds of work claimed beyond the free slots
FASTER, SLOWER = 0.6, 0.3  # how much of a change of the rate is believed at once
SUSPECT_PATIENCE = 0.25  # seconds that suspects wait before the worker empties itself for them


_limits: Callable[[Record], str | None] = attrgetter("limits")


class Demand:
    """Knows the slots and what they did lately, and what the store had when last asked."""

    def __init__(
        self,
        store: Storage,
        menu: PerTaskDemand | None,
        gates: LimitedDemand,
        queues: tuple[str, ...] | None,
        tasks: tuple[str, ...] | None,
        routing: Routing,
    ) -> None:
        self._store = store
        self._menu = menu
        self._gates = gates
        self._queues = queues
        self._tasks = tasks
        self._routing = routing
        self.slots: Slots
        self.claiming = True
        self.store_failed = False  # under a handler: nothing is claimed until it works again
        self.more = True  # the store may have jobs for us
        self.asking: dict[Claim, int] = {}  # the claims under way, and the slots that their jobs would fill
        self.elsewhere = 0  # jobs that are here, and neither wait nor run yet
        self.took = 0.005  # seconds of a recent exchange
        self.fed = (0.0, 0)  # when the slots were last given jobs, and how many
        self._alone: Attempt | None = None
        # a worker that has nothing to do yet is the one to take a suspect at once
        self._suspects_since: float | None = 0.0
        self._alone_limited = True  # of suspects, those under limits are asked for in turn with the others
        self._dry = False  # jobs without limits were fewer than asked for
        self._passed_by = True  # a single slot was for the others, not for jobs under limits
        self._rate = 0.0  # jobs a second, the store's share of the time included
        self._grown = 0  # jobs that the slots would be through with in no time
        self._rate_from = (monotonic(), 0)
        self._together = 0  # attempts that ended as items of batches

    # -- what there is to know -----------------------------------------------------------------------
    def begin(self) -> None:
        """The pump begins, or begins anew: what was asked for before is not known any more."""
        self.asking.clear()
        if not self.runs_alone:
            self._alone = None

    def assume_more(self) -> None:
        """The store may have jobs for us."""
        self.more = True
        self._gates.look()
        if self._menu is not None:
            self._menu.look()

    def ended(self, attempt: Attempt) -> bool:
        """An attempt is over. True when there may be room now for one that was left out."""
        if attempt is self._alone:
            self._alone = None
        if attempt.record.limits is not None:  # there is room under its limits, once this is on record
            self._gates.look()
            self.more = True
        if self._menu is not None and self._menu.ended(attempt.definition):
            self.more = True
            return True
        return False

    def adopted(self, attempts: Sequence[Attempt], *, alone: bool) -> None:
        if alone and attempts:
            self._alone = attempts[0]

    def saw_suspects(self) -> None:
        if self._suspects_since is None:
            self._suspects_since = monotonic()
            self.more = True

    def settled(self, batch: Sequence[tuple[Attempt, Change]], settled: int) -> None:
        """So many attempts have been settled in all, these of them just now."""
        if self._menu is not None:  # how fast batches are says nothing about other jobs
            self._together += sum(1 for attempt, _ in batch if attempt.batch is not None)
            settled -= self._together
        now = monotonic()
        since, before = self._rate_from
        if now - since >= 0.005:
            rate = (settled - before) / (now - since)
            self._rate += (FASTER if rate > self._rate else SLOWER) * (rate - self._rate)
            self._rate_from = (now, settled)

    def measure_last_feed(self) -> None:
        """Slots that are through with all they were given last may get twice as many, if they were that fast. Where some
        are still at work nothing is known: quick jobs say little about slow ones beside them."""
        since, jobs = self.fed
        fast = jobs / max(monotonic() - since, 0.000_01) * AHEAD
        self._grown = 0 if self.slots.busy else int(min(2 * jobs, fast))

    # -- whether to ask ------------------------------------------------------------------------------
    @property
    def hungry(self) -> bool:
        """There is room for jobs and nothing to wait for: claims should be answered."""
        return (
            self.claiming
            and not self.store_failed
            and self.slots.running + self.slots.waiting < self.slots.concurrency
            and not self.runs_alone
            and (self._menu is None or self._menu.has_room(self._free(asked=False)))
        )

    @property
    def runs_alone(self) -> bool:
        return self._alone is not None and self.slots.busy

    @property
    def ahead(self) -> int:
        """How many unstarted jobs to hold for the slots, by the recent rate and by how they did lately: at most as many as
        the exchanges under way can bring, and as many again for the slots to work on meanwhile."""
        if self._gates.flowing and not self._gates.ahead:
            return 0
        return min(
            (self._store.exchanges_in_flight + 1) * self._store.chunk,
            max(int(self._rate * (AHEAD + self.took)), self._grown),
        )

    def asks(self, *, everyone: bool) -> bool:
        """Whether there is anything to claim for. `everyone`: were all looked at anew."""
        if not self._may_claim():
            return False
        free = self._free()
        if (free + self.ahead if self._gates.ahead else free) > 0 and self._gates.open():
            return True
        if self._menu is None:
            return free + self.ahead > 0
        return bool(self._menu.wants(free + self.ahead, free, self.asking, everyone=everyone))

    def _free(self, *, asked: bool = True) -> int:
        """Slots for which nothing is here, or asked for; fewer than none when there is more."""
        slots = self.slots
        taken = slots.running + slots.waiting + self.elsewhere + (sum(self.asking.values()) if asked else 0)
        return slots.concurrency - taken - (slots.forming.gathering if self._menu is not None else 0)

    def _may_claim(self) -> bool:
        if not self.claiming or self.store_failed or self._alone is not None:
            return False
        if self._suspects_since is None or (not self.slots.busy and not self.asking):
            return True
        return monotonic() - self._suspects_since <= SUSPECT_PATIENCE

    # -- what to ask for -----------------------------------------------------------------------------
    @property
    def foreseeable(self) -> bool:
        """Nothing is here or asked for, and what a signal tells of does not change what to ask for: that can be made ready
        before it comes."""
        return (
            self.claiming
            and not self.store_failed
            and self._menu is None
            and not self._gates.named
            and self._suspects_since is None
            and self._alone is None
            and not self.asking
            and not self.slots.busy
        )

    def wants(self) -> tuple[Want, ...]:
        """What to ask for now; nothing when there is no room."""
        if not self._may_claim():
            return ()
        if self._suspects_since is not None and not self.slots.busy and not self.asking:
            self._suspects_since = None
            self._alone_limited = not self._alone_limited
            return (Want(1, self._queues, self._tasks, self._routing, True, self._alone_limited),)
        free = self._free()
        demand = min(free + self.ahead, self._store.chunk)
        share = demand if self._gates.ahead else min(free, demand)
        limited = self._gates.want(self._limited_share(share))
        if limited is None:
            return self._plain(demand, free)
        return (*self._plain(demand - limited.limit, free - limited.limit), limited)

    def _limited_share(self, slots: int) -> int:
        """How many of these slots are for jobs under limits: half, or all but one where there were no others. A single one
        is theirs every other time."""
        self._passed_by = slots == 1 and not self._passed_by
        if slots == 1:
            return int(not self._passed_by)
        return slots - 1 if self._dry and self._gates.flowing else -(-slots // 2)

    def _plain(self, demand: int, free: int) -> tuple[Want, ...]:
        if self._menu is not None:
            self._menu.taken_turn()
            return self._menu.wants(demand, free, self.asking, everyone=True)
        return (Want(demand, self._queues, self._tasks, self._routing),) if demand > 0 else ()

    def slots_of(self, claim: Claim) -> int:
        """How many slots a claim's jobs would fill."""
        return self._menu.slots(claim) if self._menu is not None else sum(want.limit for want in claim.wants)

    def learn(self, claim: Claim, records: Sequence[Record]) -> None:
        """What a claim brought, and so whether there may be more."""
        if claim.wants[0].alone:
            self.more = True
            return
        if claim.wants[-1].limited:
            brought = len(records) - [*map(_limits, records)].count(None)
            more = self._gates.learn(claim.wants[-1], brought)
            claim = msgspec.structs.replace(claim, wants=claim.wants[:-1])
            if brought == len(records):
                records = []
            elif brought:
                records = [record for record in records if record.limits is None]
        else:
            more = self._passed_by and self._gates.open()
        if not claim.wants:
            self._dry = False  # nothing else was asked for
        elif self._menu is None:
            self._dry = len(records) < claim.wants[0].limit
        else:
            self._dry = not self._menu.learn(claim, records)
        self.more = more or not self._dry
