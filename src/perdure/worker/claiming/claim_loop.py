"""The claim loop: reports what ended and claims what comes next, in one round trip to the store.

    slots ──▶ completion queue ──▶ claim loop ──▶ slots

The loop sleeps until something happens: an attempt ended, a slot is free, the store sent a signal, the next job is due,
or the poll is over. It sends ends at once when nothing else runs; otherwise it collects them for at most 10 ms. `Demand`
decides what to claim.

When an exchange breaks, nobody knows whether the store carried it out. The loop sends the same changes again; the store
answers "repeated" to those it has. Then the loop asks for the jobs of the lost claim by its stamp, and runs them. A claim
whose answer timed out may even take effect later, so the loop asks for it a second time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from ...core.clock import boottime
from ...core.ids import new_stamp
from ...core.job import Loss
from ...core.lifecycle import Change
from ...core.record import Record
from ...errors import StoreError, StoreUnavailable
from ...observe import log
from ...storage.contract import Claim, ExchangeResult, Started, Storage, Verdict
from ..completion_queue import CompletionQueue, End, attempt_of, change_of
from ..health.store_trouble import StoreRecovery
from ..leases.held_jobs import HeldJobs
from ..running.attempt import Attempt
from ..running.slots import Slots
from ..service import to_pulse
from .answer_timeout import AnswerTimedOut, AnswerTimeout
from .demand import Demand
from .parent_results import Followers
from .seen_queues import SeenQueues
from .single_reports import SingleReports
from .wakeup import Wakeup

if TYPE_CHECKING:
    from ...core.clock import MicrosReader
    from ...tasks.definition import TaskDefinition

NOTE_START_AFTER = 0.1  # seconds: the start of a handler that runs longer is noted with the next exchange
ASK_AGAIN = 15.0  # seconds after which the loop asks once more for a claim whose answer timed out
CANCEL_WITHIN = 5.0  # seconds that cancelled exchanges get to end when the loop ends
SHORTEST_SLEEP = 0.0005  # seconds


class _Exchange:
    """One round trip to the store: ends to report, and a claim."""

    __slots__ = ("batch", "claim", "started")

    def __init__(self, batch: list[End], claim: Claim | None) -> None:
        self.batch = batch
        self.claim = claim
        self.started = False


class ClaimLoop:
    """Exchanges ends for new jobs with the store."""

    def __init__(
        self,
        *,
        store: Storage,
        worker: str,
        definitions: Mapping[str, TaskDefinition],
        poll: float,
        held: HeldJobs,
        completions: CompletionQueue,
        slots: Slots,
        followers: Followers,
        demand: Demand,
        recovery: StoreRecovery,
        queues: SeenQueues,
        wakeup: Wakeup,
        now: MicrosReader,
        reached: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._definitions = definitions
        self._poll = poll
        self._held = held
        self._board = held.board
        self._completions = completions
        self._slots = slots
        self._followers = followers
        self._demand = demand
        self._free_hand_backs = recovery.free_hand_backs
        self._queues = queues
        self._wakeup = wakeup
        self._reached = reached
        self._timeout = AnswerTimeout(store.answer_timeout)
        self._single_reports = SingleReports(completions, self._apply, now, demand.note_confirmed)
        self._exchanges: dict[_Exchange, asyncio.Task[None]] = {}  # under way
        self._failure: Exception | None = None  # of an exchange; the loop raises it
        self._signals = 0
        self._poll_at = 0.0
        self._due_at = float("inf")
        self._lost_claims: list[Claim] = []
        self._timed_out_claims: deque[tuple[float, Claim]] = deque()  # and when to ask for them once more
        self.answered_at = monotonic()  # when the store last answered a claim

    # -- what others ask -----------------------------------------------------------------------------
    def attempts(self) -> Iterator[Attempt]:
        """Every attempt whose end is being sent to the store."""
        for exchange in self._exchanges:
            yield from map(attempt_of, exchange.batch)

    @property
    def wants_jobs(self) -> bool:
        """There is room for jobs and no reason to wait: claims should be answered."""
        return self._demand.wants_jobs

    @property
    def has_reported(self) -> bool:
        """No end waits to be sent, and no claim is unknown. A claim may be under way."""
        return not (len(self._completions) or self._lost_claims or self._followers.waiting)

    @property
    def is_idle(self) -> bool:
        """No end waits to be sent, and no answer is outstanding."""
        return self.has_reported and not self._exchanges

    # -- the loop ------------------------------------------------------------------------------------
    async def run(self, stopping: asyncio.Event) -> None:
        self._demand.reset()
        try:
            while not stopping.is_set():
                self._raise_failure()
                if self._lost_claims and not self._exchanges:
                    await self._recover_lost_claim()
                elif self._timed_out_claims and monotonic() >= self._timed_out_claims[0][0] and not self._exchanges:
                    await self._recover_timed_out_claim()
                elif self._has_reason():
                    self._begin_exchange()
                else:
                    await self._wakeup.sleep(self._time_to_sleep())
        finally:
            await self._cancel_exchanges()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _has_reason(self) -> bool:
        """Whether to begin an exchange now."""
        under_way = len(self._exchanges)
        if self._lost_claims or under_way >= self._store.exchanges_in_flight:
            return False
        if under_way:
            return self._has_many_ends()
        now = monotonic()
        if self._signals != self._wakeup.signals or now >= min(self._poll_at, self._due_at):
            self._signals = self._wakeup.signals
            self._demand.assume_more()
        self._demand.note_freed(self._completions.take_freed())
        if len(self._completions) and (
            now >= self._completions.send_at or not self._slots.busy or self._has_many_ends()
        ):
            return True
        return self._demand.may_get_more and self._demand.has_wants(everyone=False)

    def _has_many_ends(self) -> bool:
        """Whether enough has ended for an exchange beside another, so that a store which carries out one after the other
        never waits: half a chunk, or the exchange's share of the held jobs where that is less."""
        store, ends = self._store, len(self._completions)
        if store.exchanges_in_flight == 1 or 8 * ends < store.chunk:
            return False
        return ends >= min(store.chunk // 2, len(self._held) // (store.exchanges_in_flight + 1))

    def _time_to_sleep(self) -> float:
        until = min(self._poll_at, self._due_at) if self._demand.has_wants(everyone=True) else float("inf")
        if len(self._completions):
            until = min(until, self._completions.send_at)
        return min(max(until - monotonic(), SHORTEST_SLEEP), self._poll)

    async def _cancel_exchanges(self) -> None:
        tasks = [*self._exchanges.values(), *self._followers.cancel()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_WITHIN)

    # -- one exchange --------------------------------------------------------------------------------
    def _begin_exchange(self) -> None:
        claim = self._next_claim()
        exchange = _Exchange(self._completions.take(self._store.chunk), claim)
        if claim is not None:
            self._demand.begin_claim(claim)
            if self._board is not None:
                self._board.begin_claim(claim.stamp)
        task = asyncio.get_running_loop().create_task(self._run_exchange(exchange), name="perdure exchange")
        self._exchanges[exchange] = task
        task.add_done_callback(lambda task: self._end_exchange(exchange))

    def _next_claim(self) -> Claim | None:
        self._demand.note_freed(self._completions.take_freed())
        self._demand.measure_last_feed()
        wants = self._demand.wants()
        return Claim(self._worker, new_stamp(), wants) if wants else None

    async def _run_exchange(self, exchange: _Exchange) -> None:
        exchange.started = True
        try:
            await self._exchange(exchange.batch, exchange.claim)
        except Exception as error:
            self._failure = error
        finally:
            self._end_exchange(exchange)

    def _end_exchange(self, exchange: _Exchange) -> None:
        """Called by the exchange itself, and once more when its task is done: a task can be cancelled before it starts."""
        if self._exchanges.pop(exchange, None) is None:
            return
        if not exchange.started:
            self._put_back(exchange.batch, exchange.claim)
        if exchange.claim is not None:
            self._demand.end_claim(exchange.claim)
        self._wakeup.wake()

    async def _exchange(self, batch: list[End], claim: Claim | None) -> None:
        starts = self._unnoted_starts()
        asked_at, began, signals = boottime(), monotonic(), self._wakeup.signals
        try:
            exchanging = self._store.exchange([*map(change_of, batch)], claim, _notes(starts))
            answer = await self._timeout.answer(exchanging)
            took = monotonic() - began
        except (StoreError, asyncio.CancelledError) as error:
            self._put_back(batch, claim)
            if isinstance(error, StoreUnavailable | AnswerTimedOut):
                self._free_hand_backs.saw_outage()
            if claim is not None and isinstance(error, AnswerTimedOut):
                self._timed_out_claims.append((monotonic() + ASK_AGAIN, claim))
            raise
        except Exception as error:
            self._put_back([], claim)
            if not batch:
                raise  # no change is the cause: the loop pauses
            log.service_failed("an exchange of several ends", error)
            await self._single_reports.report(batch)
            return
        self._reached()
        for attempt in starts:
            attempt.started_noted = True
        if batch:
            self._completions.record_verdicts(batch, answer.verdicts)
        self._demand.note_exchange(took, batch)
        if answer.unresolved:
            self._followers.release()
        if claim is not None:
            self._receive(claim, answer, asked_at, signals)

    def _put_back(self, batch: Sequence[End], claim: Claim | None) -> None:
        self._completions.put_back(batch)
        if claim is not None:
            self._lost_claims.append(claim)

    def _apply(self, changes: Sequence[Change]) -> Awaitable[Sequence[Verdict]]:
        return self._timeout.answer(self._store.apply(changes))

    def _unnoted_starts(self) -> list[Attempt]:
        """Attempts that run for a while and whose start the store does not know yet."""
        if not self._slots.running:
            return []
        return [attempt for attempt in self._held.long_started(NOTE_START_AFTER) if not attempt.reported]

    # -- claimed jobs --------------------------------------------------------------------------------
    def _receive(self, claim: Claim, answer: ExchangeResult, asked_at: float, signals: int) -> None:
        self.answered_at = now = monotonic()
        self._poll_at = now + to_pulse(self._poll)
        self._due_at = float("inf") if answer.next_due is None else now + answer.next_due / 1_000_000
        self._demand.learn(claim, answer.claimed)
        if self._wakeup.signals != signals:  # jobs that were signalled meanwhile may have come too late for this claim
            self._demand.assume_more()
        if answer.suspects:
            self._demand.note_suspects()
        self._accept(claim, answer.claimed, asked_at)

    def _accept(self, claim: Claim, records: Sequence[Record], asked_at: float) -> None:
        attempts = Attempt.of_all(records, self._definitions, asked_at)
        for replaced in self._held.add(attempts):
            self._completions.lose(replaced, Loss.TAKEN_BY_ANOTHER_WORKER)
        self._queues.note(records)
        if self._board is not None:
            self._board.end_claim(claim.stamp)
        if attempts and claim.wants[0].alone:
            self._demand.note_suspect(attempts[0])
        following = [attempt for attempt in attempts if attempt.record.after is not None]
        if following:
            self._followers.prepare(following)
            attempts = [attempt for attempt in attempts if attempt.record.after is None]
        self._slots.feed(attempts)

    async def _recover_lost_claim(self) -> None:
        """Ask for the jobs of a claim whose answer was lost."""
        await self._recover(self._lost_claims[0])
        self._lost_claims.pop(0)

    async def _recover_timed_out_claim(self) -> None:
        """Ask once more: the store may have carried out the claim after the first question."""
        await self._recover(self._timed_out_claims[0][1])
        self._timed_out_claims.popleft()

    async def _recover(self, claim: Claim) -> None:
        asked_at = boottime()
        records = await self._timeout.answer(self._store.recover_claim(claim.worker, claim.stamp))
        self._accept(claim, [record for record in records if not self._held.has(record)], asked_at)


def _notes(starts: Sequence[Attempt]) -> list[Started]:
    return [Started(attempt.record.hold, attempt.started_at or 0) for attempt in starts]
