"""The pump: says what ended, claims what comes next, in one round trip.

It sleeps until something real happens: work ended, room is free, a signal, the next due time, the poll. An end is told
at once when nothing else runs, else gathered for at most 10 ms. It claims for the free slots and, for jobs so short
that the round trip would idle the slots, a bounded number beyond (`prefetch`).

An exchange that broke has an unknown outcome: the same changes are said again (the store answers "repeated"), and what
the lost claim may have taken is asked for by its stamp and adopted. One that was given up for want of an answer may even
take hold later: it is asked for once more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from ..clock import boottime
from ..errors import StoreError
from ..ids import new_stamp
from ..job import FINAL, Record, Routing
from ..lifecycle import Change, decide
from ..observe import log
from ..storage.contract import Claim, Exchanged, Started, Storage, Verdict, Want
from .attempt import Attempt, failed
from .gates import Gates
from .held import Held
from .menu import Menu
from .parents import bring_parents
from .patience import Patience, Unanswered
from .slots import Slots, hand_back
from .tally import Tally

if TYPE_CHECKING:
    from ..clock import MicrosReader
    from ..task import Definition

GATHER = 0.010  # seconds that an end may wait for company
AHEAD = 0.020  # seconds of work claimed beyond the free slots
NOTED_AFTER = 0.1  # a handler that runs longer has its start noted with the next exchange
SUSPECT_PATIENCE = 0.25  # seconds that suspects wait before the worker empties itself for them
ASK_AGAIN = 15.0  # seconds after which a claim that was given up is asked for once more
LET_GO = 5.0  # seconds that exchanges under way get to end when the pump does


class Pump:
    """Exchanges ends for new jobs with the store."""

    def __init__(
        self,
        *,
        store: Storage,
        worker: str,
        definitions: Mapping[str, Definition],
        menu: Menu | None,
        gates: Gates,
        queues: tuple[str, ...] | None,
        tasks: tuple[str, ...] | None,
        routing: Routing,
        poll: float,
        held: Held,
        now: MicrosReader,
        reached: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._definitions = definitions
        self._menu = menu
        self._gates = gates
        self._queues = queues
        self._tasks = tasks
        self._routing = routing
        self._poll = poll
        self._held = held
        self._now = now
        self._reached = reached
        self._patience = Patience(store.answers_within)
        self.slots: Slots
        self.tally = Tally()
        self.claiming = True
        self._ended: deque[tuple[Attempt, Change]] = deque()
        self._ended_since = 0.0
        self._under_way: set[asyncio.Task[None]] = set()
        self._asking: dict[Claim, int] = {}  # the claims under way, and the slots that their jobs would fill
        self._confirming: dict[Attempt, asyncio.Future[Verdict | None]] = {}
        self._broken: BaseException | None = None
        self._more = True  # the store may have jobs for us
        self._signals = 0
        self._poll_at = 0.0
        self._due_at = float("inf")
        self._lost_claims: list[Claim] = []
        self._dry = False  # jobs without limits were fewer than asked for
        self._alone_limited = True  # of suspects, those under limits are asked for in turn with the others
        self._bringing: dict[asyncio.Task[None], int] = {}  # jobs whose parents are being read
        self._settling: asyncio.Task[None] | None = None
        self._given_up: deque[tuple[float, Claim]] = deque()  # to be asked for once more, and when
        self.answered_at = monotonic()  # when the store last answered a claim, or none was to be made
        # a worker that has nothing to do yet is the one to take a suspect at once
        self._suspects_since: float | None = 0.0
        self._alone: Attempt | None = None
        self._rate = 0.0  # jobs a second, the store's share of the time included
        self._grown = 0  # jobs that the slots would be through with in no time
        self._fed = (0.0, 0)  # when the slots were last given jobs, and how many
        self._rate_from = (monotonic(), 0)
        self._together = 0  # attempts that ended as items of batches
        self._took = 0.005  # seconds of a recent exchange
        self._waker: asyncio.Future[None] | None = None

    # -- what others say -----------------------------------------------------------------------------
    def tell(self, attempt: Attempt, change: Change | None) -> None:
        """An attempt is over. None: the store knows already, or nobody may speak for it any more."""
        if attempt is self._alone:
            self._alone = None
        if self._menu is not None and self._menu.ended(attempt.definition):
            self._more = True
            self.wake()
        if attempt.record.limits is not None:  # there is room under its limits, once this is on record
            self._gates.look()
            self._more = True
        if change is None:
            if attempt.said_change:  # its handler's transaction has said it
                self.tally.count([attempt])
            self._held.drop(attempt)
            self._confirmed(attempt, None)
            self.wake()
            return
        attempt.said_change = True
        if self._confirming and attempt in self._confirming:
            self._ended_since = 0.0  # somebody waits for it
            self.wake()
        elif not self._ended:
            self._ended_since = monotonic()
            self.wake()
        self._ended.append((attempt, change))
        # looked at now and then only: a job that never waits is over in microseconds
        if len(self._ended) % 16 == 0:
            self.wake()

    def confirm(self, attempt: Attempt) -> asyncio.Future[Verdict | None]:
        """What the store will say about the end of this attempt, which is about to be told."""
        confirmed: asyncio.Future[Verdict | None] = asyncio.get_running_loop().create_future()
        self._confirming[attempt] = confirmed
        return confirmed

    def _confirmed(self, attempt: Attempt, verdict: Verdict | None) -> None:
        confirmed = self._confirming.pop(attempt, None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(verdict)

    def signalled(self) -> None:
        self._signals += 1
        self._look()
        self.wake()

    def _look(self) -> None:
        """The store may have jobs for us."""
        self._more = True
        self._gates.look()
        if self._menu is not None:
            self._menu.look()

    def wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def hand_back_waiting(self) -> None:
        """Give back what has not begun, free of charge."""
        for attempt in self.slots.take_back():
            self.tell(attempt, hand_back(attempt))

    @property
    def settled(self) -> bool:
        """Nothing is left to say, and no answer is outstanding."""
        return not self._ended and not self._under_way and not self._lost_claims and not self._bringing

    @property
    def hungry(self) -> bool:
        """There is room for jobs and nothing to wait for: claims should be answered."""
        return (
            self.claiming
            and self.slots.running + self.slots.waiting < self.slots.concurrency
            and not self._runs_alone
            and (self._menu is None or self._menu.has_room(self._free(asked=False)))
        )

    @property
    def _runs_alone(self) -> bool:
        return self._alone is not None and self.slots.busy

    # -- the loop ------------------------------------------------------------------------------------
    async def run(self, stopping: asyncio.Event) -> None:
        self._asking.clear()
        if not self._runs_alone:
            self._alone = None
        try:
            while not stopping.is_set():
                if self._broken is not None:
                    error, self._broken = self._broken, None
                    raise error
                if self._lost_claims and not self._under_way:
                    await self._recover_claim()
                elif self._given_up and monotonic() >= self._given_up[0][0] and not self._under_way:
                    await self._look_again()
                elif self._has_reason():
                    self._begin_exchange()
                else:
                    await self._sleep()
        finally:
            under_way = [*self._under_way, *self._bringing, *([self._settling] if self._settling else [])]
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way, timeout=LET_GO)

    def _has_reason(self) -> bool:
        if self._lost_claims or len(self._under_way) >= self._store.in_flight:
            return False
        if self._under_way:
            return self._has_much()
        now = monotonic()
        if now >= min(self._poll_at, self._due_at):
            self._look()
        if self._handlers_first(now):
            return False
        if self._ended and (now - self._ended_since >= GATHER or not self.slots.busy or self._has_much()):
            return True
        return self._more and self.slots.waiting <= self._ahead() // 2 and self._asks(everyone=False)

    def _has_much(self) -> bool:
        """Enough has ended to go beside another exchange, so that a store which does one after the other never waits."""
        return self._store.in_flight > 1 and 2 * len(self._ended) >= self._store.chunk

    def _handlers_first(self, now: float) -> bool:
        """Whether handlers that never wait are just being gone through. A store that takes one exchange at a time works in
        this process: beside them it would only fight for the interpreter's lock, which costs both a fifth."""
        going = self.slots.waiting > 0 and not self.slots.running
        return going and self._store.in_flight == 1 and now - self._fed[0] < GATHER

    async def _sleep(self) -> None:
        until = min(self._poll_at, self._due_at) if self._asks(everyone=True) else float("inf")
        if self._ended:
            until = min(until, self._ended_since + GATHER)
        self._waker = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(min(max(until - monotonic(), 0.0005), self._poll), self.wake)
        try:
            await self._waker
        finally:
            timer.cancel()
            self._waker = None

    def _begin_exchange(self) -> None:
        batch = self._take()
        self._look_back()
        claim = self._claim()
        if claim is not None:
            self._asking[claim] = self._menu.slots(claim) if self._menu else sum(want.limit for want in claim.wants)
            if self._held.board is not None:
                self._held.board.claims(claim.stamp)
        exchange = asyncio.get_running_loop().create_task(self._exchange(batch, claim), name="holdfast exchange")
        self._under_way.add(exchange)
        exchange.add_done_callback(self._exchanged)

    def _exchanged(self, exchange: asyncio.Task[None]) -> None:
        self._under_way.discard(exchange)
        if not exchange.cancelled() and (error := exchange.exception()) is not None:
            self._broken = error
        self.wake()

    async def _exchange(self, batch: list[tuple[Attempt, Change]], claim: Claim | None) -> None:
        started = self._started()
        asked_at, began, heard = boottime(), monotonic(), self._signals
        try:
            asking = self._store.exchange([change for _, change in batch], claim, _notes(started))
            answer = await self._patience.answer(asking)
        except asyncio.CancelledError:
            self._take_back(batch, claim)
            raise
        except StoreError as error:
            self._take_back(batch, claim)
            if claim is not None and isinstance(error, Unanswered):
                self._given_up.append((monotonic() + ASK_AGAIN, claim))
            raise
        except Exception as error:
            self._take_back([], claim)
            await self._one_by_one(batch, error)
            return
        finally:
            if claim is not None:
                self._asking.pop(claim, None)
        self._took = 0.8 * self._took + 0.2 * (monotonic() - began)
        self._reached()
        for attempt in started:
            attempt.started_noted = True
        self._settle(batch, answer.verdicts)
        if answer.unsettled:
            self._settle_rest()
        if claim is not None:
            self._received(claim, answer, asked_at, heard)

    # -- ends ----------------------------------------------------------------------------------------
    def _take(self) -> list[tuple[Attempt, Change]]:
        """The next ends to tell, at most one of a job."""
        if len(self._ended) <= self._store.chunk and len({change.id for _, change in self._ended}) == len(self._ended):
            batch = list(self._ended)
            self._ended.clear()
            self._ended_since = monotonic()
            return batch
        batch = []
        seen: set[str] = set()
        for _ in range(min(len(self._ended), self._store.chunk)):
            attempt, change = self._ended.popleft()
            if change.id in seen:
                self._ended.append((attempt, change))
            else:
                seen.add(change.id)
                batch.append((attempt, change))
        self._ended_since = monotonic()
        return batch

    def _take_back(self, batch: Sequence[tuple[Attempt, Change]], claim: Claim | None) -> None:
        self._ended.extendleft(reversed(batch))
        if claim is not None:
            self._lost_claims.append(claim)

    def _settle(self, batch: Sequence[tuple[Attempt, Change]], verdicts: Sequence[Verdict]) -> None:
        self._held.drop_all(batch)
        self.tally.count([attempt for attempt, change in batch if change.state in FINAL])
        for (attempt, change), verdict in zip(batch, verdicts, strict=True):
            if verdict.refusal is not None and change.state is not None:
                log.word_refused(attempt.record, verdict.refusal)
        if self._confirming:
            for (attempt, _), verdict in zip(batch, verdicts, strict=True):
                self._confirmed(attempt, verdict)
        now, settled = monotonic(), self._held.settled
        if self._menu is not None:  # how fast batches are says nothing about other jobs
            self._together += sum(1 for attempt, _ in batch if attempt.batch is not None)
            settled -= self._together
        since, before = self._rate_from
        if now - since >= 0.005:
            self._rate += 0.3 * ((settled - before) / (now - since) - self._rate)
            self._rate_from = (now, settled)

    async def _one_by_one(self, batch: Sequence[tuple[Attempt, Change]], error: Exception) -> None:
        """One of these changes cannot be stored. The others can; the bad one becomes its own job's failure."""
        log.service_failed("an exchange of several ends", error)
        for attempt, change in batch:
            try:
                self._settle([(attempt, change)], await self._patience.answer(self._store.apply([change])))
            except StoreError:
                self._ended.append((attempt, change))
            except Exception as bad:
                await self._fail_instead(attempt, bad)

    async def _fail_instead(self, attempt: Attempt, bad: Exception) -> None:
        log.change_not_stored(attempt.record, bad)
        instead = decide(attempt.record, failed(attempt, bad, self._now, retryable=True))
        try:
            await self._patience.answer(self._store.apply([instead]))
        except Exception as error:
            log.change_not_stored(attempt.record, error)  # the lease will end, and the reaper takes over
        self._held.drop(attempt)
        self._confirmed(attempt, None)

    def _started(self) -> list[Attempt]:
        """Whose start is to be noted."""
        running = self._held.long_started(NOTED_AFTER) if self.slots.running else []
        return [attempt for attempt in running if not attempt.said_change]

    # -- claims --------------------------------------------------------------------------------------
    def _look_back(self) -> None:
        """Slots that are through with all they were given last may get twice as many, if they were that fast. Where some
        are still at work nothing is known: quick jobs say little about slow ones beside them."""
        since, jobs = self._fed
        fast = jobs / max(monotonic() - since, 0.000_01) * AHEAD
        self._grown = 0 if self.slots.busy else int(min(2 * jobs, fast))

    def _ahead(self) -> int:
        """How many unstarted jobs to hold for the slots, by the recent rate and by how they did lately."""
        if self._gates.flowing:
            return 0
        return min(2 * self._store.chunk, max(int(self._rate * (AHEAD + self._took)), self._grown))

    def _free(self, *, asked: bool = True) -> int:
        """Slots for which nothing is here, or asked for; fewer than none when there is more."""
        slots = self.slots
        taken = slots.running + slots.waiting + (sum(self._asking.values()) if asked else 0)
        if self._bringing:
            taken += sum(self._bringing.values())
        return slots.concurrency - taken - (slots.forming.gathering if self._menu is not None else 0)

    def _may_claim(self) -> bool:
        if not self.claiming or self._alone is not None:
            return False
        if self._suspects_since is None or (not self.slots.busy and not self._asking):
            return True
        return monotonic() - self._suspects_since <= SUSPECT_PATIENCE

    def _asks(self, *, everyone: bool) -> bool:
        """Whether there is anything to claim for. `everyone`: were all looked at anew."""
        if not self._may_claim():
            return False
        free = self._free()
        if free > 0 and self._gates.open():
            return True
        if self._menu is None:
            return free + self._ahead() > 0
        return bool(self._menu.wants(free + self._ahead(), free, self._asking, everyone=everyone))

    def _claim(self) -> Claim | None:
        if not self._may_claim():
            return None
        wants = self._wants()
        return Claim(self._worker, new_stamp(), wants) if wants else None

    def _wants(self) -> tuple[Want, ...]:
        free = self._free()
        demand = min(free + self._ahead(), self._store.chunk)
        if self._suspects_since is not None and not self.slots.busy and not self._asking:
            self._suspects_since = None
            self._alone_limited = not self._alone_limited
            return (Want(1, self._queues, self._tasks, self._routing, True, self._alone_limited),)
        limited = self._gates.want(free if self._dry else -(-free // 2))
        if limited is None:
            return self._plain_wants(demand, free)
        return (*self._plain_wants(demand - limited.limit, free - limited.limit), limited)

    def _plain_wants(self, demand: int, free: int) -> tuple[Want, ...]:
        if self._menu is not None:
            self._menu.taken_turn()
            return self._menu.wants(demand, free, self._asking, everyone=True)
        return (Want(demand, self._queues, self._tasks, self._routing),) if demand > 0 else ()

    def _received(self, claim: Claim, answer: Exchanged, asked_at: float, heard: int) -> None:
        self.answered_at = now = monotonic()
        self._poll_at = now + self._poll
        self._due_at = float("inf") if answer.next_due is None else now + answer.next_due / 1_000_000
        # what was signalled meanwhile, the claim may have come too early for
        self._more = self._learn(claim, answer.claimed)
        if self._signals != heard:
            self._look()
        if answer.suspects and self._suspects_since is None:
            self._suspects_since = now
            self._more = True
        self._adopt(claim, answer.claimed, asked_at)

    def _learn(self, claim: Claim, records: Sequence[Record]) -> bool:
        """Whether there may be more of what was asked for."""
        if claim.wants[0].alone:
            return True
        more = False
        if claim.wants[-1].limited:
            brought = sum(record.limits is not None for record in records)
            more = self._gates.learn(claim.wants[-1], brought)
            claim = msgspec.structs.replace(claim, wants=claim.wants[:-1])
            records = [record for record in records if record.limits is None] if brought else records
        if not claim.wants:
            return True  # nothing else was asked for
        if self._menu is None:
            self._dry = len(records) < claim.wants[0].limit
        else:
            self._dry = not self._menu.learn(claim, records)
        return more or not self._dry

    def _adopt(self, claim: Claim, records: Sequence[Record], asked_at: float) -> None:
        definitions = self._definitions
        attempts = [Attempt.of(record, definitions.get(record.task), asked_at) for record in records]
        self._held.add(attempts)
        if self._held.board is not None:
            self._held.board.claimed(claim.stamp)
        if not self.claiming:
            for attempt in attempts:
                self.tell(attempt, hand_back(attempt))
            return
        if claim.wants[0].alone and attempts:
            self._alone = attempts[0]
        following = [attempt for attempt in attempts if attempt.record.after is not None]
        if following:
            self._bring(following)
            attempts = [attempt for attempt in attempts if attempt.record.after is None]
        self._feed(attempts)

    def _feed(self, attempts: list[Attempt]) -> None:
        if attempts:
            self._fed = (monotonic(), len(attempts))
            self.slots.feed(attempts)

    # -- followers -----------------------------------------------------------------------------------
    def _bring(self, attempts: list[Attempt]) -> None:
        """Read what these jobs get of their parents, then let them begin."""
        bringing = asyncio.get_running_loop().create_task(self._brought(attempts), name="holdfast parents")
        self._bringing[bringing] = len(attempts)
        bringing.add_done_callback(self._is_brought)

    async def _brought(self, attempts: list[Attempt]) -> None:
        try:
            await bring_parents(self._store, attempts)
        except Exception as error:
            log.service_failed("reading the results of parents", error)
            for attempt in attempts:
                self.tell(attempt, hand_back(attempt))
            return
        if self.claiming:
            self._feed([attempt for attempt in attempts if not attempt.ended])
        else:
            for attempt in attempts:
                self.tell(attempt, hand_back(attempt))

    def _is_brought(self, bringing: asyncio.Task[None]) -> None:
        del self._bringing[bringing]
        self.wake()

    def _settle_rest(self) -> None:
        """A job with very many followers has ended: let them all go, step by step."""
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle_edges(), name="holdfast settling")

    async def _settle_edges(self) -> None:
        try:
            while await self._patience.answer(self._store.settle(self._store.chunk)):
                self._reached()
        except Exception as error:  # upkeep goes on with it
            log.service_failed("settling edges", error)

    async def _recover_claim(self) -> None:
        claim = self._lost_claims[0]
        asked_at = boottime()
        records = await self._patience.answer(self._store.holding(claim.worker, claim.stamp))
        self._lost_claims.pop(0)
        self._reached()
        self._adopt(claim, records, asked_at)

    async def _look_again(self) -> None:
        """A question that nobody answered may have been heard after we asked what it had brought."""
        claim = self._given_up[0][1]
        asked_at = boottime()
        records = await self._patience.answer(self._store.holding(claim.worker, claim.stamp))
        self._given_up.popleft()
        self._reached()
        self._adopt(claim, [record for record in records if not self._held.has(record)], asked_at)


def _notes(started: Sequence[Attempt]) -> list[Started]:
    return [Started(attempt.record.hold, attempt.started_at or 0) for attempt in started]
