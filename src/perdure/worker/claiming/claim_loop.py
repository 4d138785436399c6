"""The pump: says what ended, claims what comes next, in one round trip.

It sleeps until something real happens: work ended, room is free, a signal, the next due time, the poll. An end is told
at once when nothing else runs, else gathered for at most 10 ms. What it claims is said by `Demand`.

An exchange that broke has an unknown outcome: the same changes are said again (the store answers "repeated"), and what
the lost claim may have taken is asked for by its stamp and adopted. One that was given up for want of an answer may even
take hold later: it is asked for once more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING

from ...core.clock import boottime
from ...core.ids import new_stamp
from ...core.job import FINAL, State
from ...core.lifecycle import Change, decide
from ...core.outcome import Outcome
from ...core.record import Record
from ...errors import InvalidCall, StoreError, StoreUnavailable
from ...observe import log
from ...storage.contract import ACCEPTED, Claim, ExchangeResult, Refusal, Started, Storage, Verdict
from ..health.store_trouble import FreeHandBacks, StoreRecovery
from ..health.throughput import Throughput
from ..leases.held_jobs import HeldJobs
from ..running.attempt import Attempt, after_refusal, failed, hand_back
from ..running.parent_results import Followers
from ..running.slots import Slots
from ..service import to_pulse
from .answer_timeout import AnswerTimedOut, AnswerTimeout
from .demand import Demand
from .exchange_tasks import ExchangeJob, ExchangeTasks
from .seen_queues import SeenQueues

if TYPE_CHECKING:
    from ...core.clock import MicrosReader
    from ...tasks.definition import TaskDefinition

GATHER = 0.010  # seconds that an end may wait for company
NOTED_AFTER = 0.1  # a handler that runs longer has its start noted with the next exchange
ASK_AGAIN = 15.0  # seconds after which a claim that was given up is asked for once more
LET_GO = 5.0  # seconds that exchanges under way get to end when the pump does


class ClaimLoop:
    """Exchanges ends for new jobs with the store."""

    def __init__(
        self,
        *,
        store: Storage,
        worker: str,
        definitions: Mapping[str, TaskDefinition],
        appetite: Demand,
        poll: float,
        held: HeldJobs,
        now: MicrosReader,
        reached: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._definitions = definitions
        self._appetite = appetite
        self._poll = poll
        self._held = held
        self._now = now
        self._reached = reached
        self._patience = AnswerTimeout(store.answer_timeout)
        self._followers = Followers(store, self._patience, self._start, self._refuse)
        self.free_hand_backs = FreeHandBacks()
        self._recovery = StoreRecovery(store, self._store_works, self.free_hand_backs.saw_outage)
        self.tally = Throughput()
        self.queues = SeenQueues(store)
        self._ended: deque[tuple[Attempt, Change]] = deque()
        self._ended_since = 0.0
        self._messengers = ExchangeTasks(
            store.exchanges_in_flight,
            self._exchange,
            self._exchanged,
            self._undone,
            lambda task: self.slots.run_in_caller(task),
        )
        self._sent: dict[int, ExchangeJob] = {}  # errands under way, by identity
        self._confirming: dict[Attempt, asyncio.Future[Verdict | None]] = {}
        self._broken: BaseException | None = None
        self._signals = 0
        self._poll_at = 0.0
        self._due_at = float("inf")
        self._lost_claims: list[Claim] = []
        self._given_up: deque[tuple[float, Claim]] = deque()  # to be asked for once more, and when
        self.answered_at = monotonic()  # when the store last answered a claim, or none was to be made
        self._waker: asyncio.Future[None] | None = None
        self._prepared_claim: Claim | None = (
            None  # what to ask for when something is signalled, made while there was time
        )

    # -- what others say -----------------------------------------------------------------------------
    def report(self, attempt: Attempt, change: Change | None) -> None:
        """An attempt is over. None: the store knows already, or nobody may speak for it any more."""
        if self._appetite.ended(attempt):
            self.wake()
        if change is None:
            self._forget(attempt)
            return
        attempt.said_change = True
        ended = self._ended
        if self._confirming and attempt in self._confirming:
            self._ended_since = 0.0  # somebody waits for it
            self.wake()
        elif not ended:
            self._ended_since = monotonic()
            self.wake()
        elif len(ended) % 16 == 0:  # now and then only: a job that never waits is over in microseconds
            self.wake()
        ended.append((attempt, change))

    def _forget(self, attempt: Attempt) -> None:
        if attempt.said_change:  # its handler's transaction has said it
            self.tally.count([attempt])
        self._held.drop(attempt)
        self._confirmed(attempt, None)
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
        self._appetite.assume_more()
        if self._waker is None or self._waker.done():
            return
        try:  # an idle pump asks at once: to wake it up first takes another turn of the loop
            if (claim := self._take_foreseen()) is not None:
                self._send([], claim)
            elif self._has_reason():
                self._begin_exchange()
            else:
                self.wake()
        except Exception as error:
            self._broken = error
            self.wake()

    def wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def hand_back_waiting(self) -> None:
        """Give back what has not begun, free of charge."""
        for attempt in self.slots.take_back():
            self.report(attempt, hand_back(attempt))

    def store_failed(self) -> None:
        """The store failed under a handler. Claim nothing until it works again, and hand back what has not begun: that would
        meet the same trouble."""
        if self._appetite.store_failed:
            return
        self._appetite.store_failed = True
        log.claims_no_more()
        self._recovery.begin()
        self.hand_back_waiting()

    def _store_works(self) -> None:
        self._appetite.store_failed = False
        self._appetite.assume_more()
        self.wake()

    @property
    def waits_for_store(self) -> bool:
        return self._appetite.store_failed

    def close(self) -> None:
        self._recovery.close()

    def at_hand(self) -> Iterator[Attempt]:
        """Every attempt whose parents are being read, or whose end is being reported."""
        yield from self._followers.at_hand()
        for ends in (self._ended, *(batch for batch, _ in self._sent.values())):
            yield from map(_attempt, ends)

    @property
    def slots(self) -> Slots:
        return self._appetite.slots

    @property
    def claiming(self) -> bool:
        return self._appetite.claiming

    @property
    def wants_jobs(self) -> bool:
        """There is room for jobs and nothing to wait for: claims should be answered."""
        return self._appetite.hungry

    @property
    def reported(self) -> bool:
        """Nothing is left to report. A claim may be under way: jobs that it takes are running on record."""
        return not (self._ended or self._lost_claims or self._followers.waiting)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to report, and no answer is outstanding."""
        return self.reported and not self._messengers.away

    def stop_claiming(self) -> None:
        self._appetite.claiming = False

    # -- the loop ------------------------------------------------------------------------------------
    async def run(self, stopping: asyncio.Event) -> None:
        self._appetite.begin()
        try:
            while not stopping.is_set():
                if self._broken is not None:
                    error, self._broken = self._broken, None
                    raise error
                if self._lost_claims and not self._messengers.away:
                    await self._recover_claim()
                elif self._given_up and monotonic() >= self._given_up[0][0] and not self._messengers.away:
                    await self._look_again()
                elif self._has_reason():
                    self._begin_exchange()
                else:
                    await self._sleep()
        finally:
            under_way = self._messengers.dismiss()
            for task in self._followers.under_way():
                task.cancel()
                under_way.append(task)
            if under_way:
                await asyncio.wait(under_way, timeout=LET_GO)

    def _has_reason(self) -> bool:
        under_way = self._messengers.away
        if self._lost_claims or under_way >= self._store.exchanges_in_flight:
            return False
        if under_way:
            return self._has_much()
        now = monotonic()
        if now >= min(self._poll_at, self._due_at):
            self._appetite.assume_more()
        if self._ended and (now - self._ended_since >= GATHER or not self.slots.busy or self._has_much()):
            return True
        appetite = self._appetite
        return appetite.more and self.slots.waiting <= appetite.ahead // 2 and appetite.asks(everyone=False)

    def _has_much(self) -> bool:
        """Enough has ended to go beside another exchange, so that a store which does one after the other never waits: half a
        chunk, or its share of what is held, where that is less."""
        store = self._store
        if store.exchanges_in_flight == 1 or 8 * len(self._ended) < store.chunk:
            return False
        return len(self._ended) >= min(store.chunk // 2, len(self._held) // (store.exchanges_in_flight + 1))

    async def _sleep(self) -> None:
        until = min(self._poll_at, self._due_at) if self._appetite.asks(everyone=True) else float("inf")
        if self._ended:
            until = min(until, self._ended_since + GATHER)
        if self._prepared_claim is None and self.is_idle and self._appetite.foreseeable:
            self._prepared_claim = self._next_claim()
        self._waker = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(min(max(until - monotonic(), 0.0005), self._poll), self.wake)
        try:
            await self._waker
        finally:
            timer.cancel()
            self._waker = None

    def _begin_exchange(self) -> None:
        claim = self._take_foreseen() or self._next_claim()
        self._send(self._take(), claim)

    def _send(self, batch: list[tuple[Attempt, Change]], claim: Claim | None) -> None:
        errand = (batch, claim)
        self._sent[id(errand)] = errand
        try:
            if claim is not None:
                self._appetite.asking[claim] = self._appetite.slots_of(claim)
                if self._held.board is not None:
                    self._held.board.claims(claim.stamp)
            self._messengers.send(errand)
        except BaseException:
            self._undone(errand)
            raise

    def _take_foreseen(self) -> Claim | None:
        claim, self._prepared_claim = self._prepared_claim, None
        return claim if claim is not None and self.is_idle and self._appetite.foreseeable else None

    def _next_claim(self) -> Claim | None:
        appetite = self._appetite
        appetite.measure_last_feed()
        appetite.elsewhere = self._followers.waiting
        wants = appetite.wants()
        return Claim(self._worker, new_stamp(), wants) if wants else None

    def _exchanged(self, error: BaseException | None) -> None:
        """A messenger is back."""
        if error is not None:
            self._broken = error
        self.wake()

    def _undone(self, errand: ExchangeJob) -> None:
        """An errand was stopped before it began."""
        batch, claim = errand
        del self._sent[id(errand)]
        self._take_back(batch, claim)
        if claim is not None:
            self._appetite.asking.pop(claim, None)

    async def _exchange(self, errand: ExchangeJob) -> None:
        batch, claim = errand
        started = self._started()
        asked_at, began, heard = boottime(), monotonic(), self._signals
        try:
            asking = self._store.exchange([*map(_change, batch)], claim, _notes(started))
            answer = await self._patience.answer(asking)
            self._appetite.took = 0.8 * self._appetite.took + 0.2 * (monotonic() - began)
            self._reached()
            for attempt in started:
                attempt.started_noted = True
            self._settle(batch, answer.verdicts)
        except (StoreError, asyncio.CancelledError) as error:
            self._take_back(batch, claim)
            if isinstance(error, StoreUnavailable | AnswerTimedOut):
                self.free_hand_backs.saw_outage()
            if claim is not None and isinstance(error, AnswerTimedOut):
                self._given_up.append((monotonic() + ASK_AGAIN, claim))
            raise
        except Exception as error:
            self._take_back([], claim)
            if not batch:
                raise  # no word of ours is at fault: the pump pauses
            await self._one_by_one(batch, error)
            return
        finally:
            del self._sent[id(errand)]
            if claim is not None:
                self._appetite.asking.pop(claim, None)
        if answer.unresolved:
            self._followers.settle()
        if claim is not None:
            self._received(claim, answer, asked_at, heard)

    # -- ends ----------------------------------------------------------------------------------------
    def _take(self) -> list[tuple[Attempt, Change]]:
        """The next ends to tell, at most one of a job."""
        if not self._ended:
            return []
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
        if not batch:
            self._appetite.settled(batch, self._held.settled)
            return
        self._held.drop_all(batch)
        self.tally.count([attempt for attempt, change in batch if change.state in FINAL])
        if verdicts.count(ACCEPTED) < len(batch):
            for (attempt, change), verdict in zip(batch, verdicts, strict=True):
                if verdict.refusal is not None and change.state is not None:
                    log.report_refused(attempt.record, verdict.refusal)
                    self._free(attempt, change, verdict.refusal)
        if log.logs_successes():
            for (attempt, change), verdict in zip(batch, verdicts, strict=True):
                if verdict.refusal is None and change.state is State.SUCCEEDED:
                    log.attempt_succeeded(attempt.record, attempt.took)
        if self._confirming:
            for (attempt, _), verdict in zip(batch, verdicts, strict=True):
                self._confirmed(attempt, verdict)
        self._appetite.settled(batch, self._held.settled)

    def _free(self, attempt: Attempt, change: Change, refusal: Refusal) -> None:
        """The end of an attempt was refused. If it still has a slot or a key, they are free now."""
        last = after_refusal(attempt, change, refusal)
        if last is not None:
            self._ended.append((attempt, last))
            self._ended_since = 0.0
            self.wake()

    async def _one_by_one(self, batch: Sequence[tuple[Attempt, Change]], error: Exception) -> None:
        """One of these changes cannot be stored. The others can; the bad one becomes its own job's failure. What is left
        when the store breaks, or when this is cancelled, is reported by a later exchange."""
        log.service_failed("an exchange of several ends", error)
        left = deque(batch)
        try:
            while left:
                attempt, change = left[0]
                try:
                    await self._report_one(attempt, change)
                except StoreError:
                    left.rotate(-1)  # if this change is the cause, the others go first
                    raise
                except Exception as bad:
                    await self._report_failure(attempt, bad)
                left.popleft()
        finally:
            self._take_back(left, None)

    async def _report_one(self, attempt: Attempt, change: Change) -> None:
        self._settle([(attempt, change)], await self._patience.answer(self._store.apply([change])))

    async def _report_failure(self, attempt: Attempt, bad: Exception) -> None:
        """Report a failure in place of an end that could not be stored. If that cannot be stored either, the attempt is
        dropped: nobody renews its lease any more, so upkeep brings the job back."""
        log.change_not_stored(attempt.record, bad)
        try:
            await self._report_one(attempt, decide(attempt.record, failed(attempt, bad, self._now, retryable=True)))
        except StoreError:
            raise
        except Exception as error:
            log.change_not_stored(attempt.record, error)
            self._held.drop(attempt)
            self._confirmed(attempt, None)

    def _started(self) -> list[Attempt]:
        """Whose start is to be noted."""
        if not self.slots.running:
            return []
        return [attempt for attempt in self._held.long_started(NOTED_AFTER) if not attempt.said_change]

    # -- claims --------------------------------------------------------------------------------------
    def _received(self, claim: Claim, answer: ExchangeResult, asked_at: float, heard: int) -> None:
        self.answered_at = now = monotonic()
        self._poll_at = now + to_pulse(self._poll)
        self._due_at = float("inf") if answer.next_due is None else now + answer.next_due / 1_000_000
        self._appetite.learn(claim, answer.claimed)
        # what was signalled meanwhile, the claim may have come too early for
        if self._signals != heard:
            self._appetite.assume_more()
        if answer.suspects:
            self._appetite.saw_suspects()
        self._accept_claimed(claim, answer.claimed, asked_at, served=True)

    def _accept_claimed(
        self, claim: Claim, records: Sequence[Record], asked_at: float, *, served: bool = False
    ) -> None:
        """`served`: whoever brought them goes on as a slot."""
        attempts = Attempt.of_all(records, self._definitions, asked_at)
        self._held.add(attempts)
        self.queues.note(records)
        if self._held.board is not None:
            self._held.board.claimed(claim.stamp)
        self._appetite.adopted(attempts, alone=claim.wants[0].alone)
        following = [attempt for attempt in attempts if attempt.record.after is not None]
        if following:
            self._followers.bring(following)
            attempts = [attempt for attempt in attempts if attempt.record.after is None]
        self._start(attempts, served=served)

    def _start(self, attempts: list[Attempt], *, served: bool = False) -> None:
        if not self.claiming:
            for attempt in attempts:
                self.report(attempt, hand_back(attempt))
        elif attempts:
            self._appetite.fed = (monotonic(), len(attempts))
            self.slots.feed(attempts, served=served)

    def _refuse(self, attempt: Attempt, end: InvalidCall | Outcome | None) -> None:
        """The handler of a follower is not called: its end is known without it, or the store failed (None)."""
        if attempt.ended:
            return
        if end is None:
            attempt.ended = True
            self.report(attempt, hand_back(attempt))
        else:
            self.slots.end_unbegun(attempt, end)
        self.wake()

    async def _recover_claim(self) -> None:
        """Ask what a claim has brought whose answer was lost."""
        await self._adopt_held(self._lost_claims[0])
        self._lost_claims.pop(0)

    async def _look_again(self) -> None:
        """A question that nobody answered may have been heard after we asked what it had brought."""
        await self._adopt_held(self._given_up[0][1])
        self._given_up.popleft()

    async def _adopt_held(self, claim: Claim) -> None:
        asked_at = boottime()
        records = await self._patience.answer(self._store.recover_claim(claim.worker, claim.stamp))
        self._reached()
        self._accept_claimed(claim, [record for record in records if not self._held.has(record)], asked_at)


_attempt: Callable[[tuple[Attempt, Change]], Attempt] = itemgetter(0)
_change: Callable[[tuple[Attempt, Change]], Change] = itemgetter(1)


def _notes(started: Sequence[Attempt]) -> list[Started]:
    return [Started(attempt.record.hold, attempt.started_at or 0) for attempt in started]
