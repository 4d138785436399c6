"""Pulling jobs by hand: `async with app.claim(tasks=["embed"], limit=32) as items`.

The block is a small worker without slots: what it claimed is held, renewed and timed like any worker's jobs, and each item
gets its outcome by a word. What has none when the block ends is handed back, free of charge.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from ..core.clock import SECOND, Duration, MicrosReader, boottime, micros_of, reader
from ..core.encoding import codec
from ..core.ids import new_id, new_stamp
from ..core.job import Loss, Routing
from ..core.lifecycle import Change, decide
from ..core.record import Record
from ..core.validation import check_names, check_routing
from ..errors import InvalidCall, StoreError
from ..handler.item import Item
from ..observe import log
from ..storage.contract import Claim, ExchangeResult, Storage, Verdict, Want
from ..tasks.definition import TaskDeclaration, TaskDefinition
from .claiming.unanswered_claims import hand_back_unanswered, run_in_background
from .leases.held_jobs import HeldJobs
from .leases.lease_keeper import LeaseKeeper
from .leases.orphans import Orphans
from .pull_upkeep import PullUpkeep
from .running.attempt import Attempt, after_refusal, failed, hand_back
from .running.completion import Completion
from .running.context_backend import StoreContextBackend
from .running.deadlines import Deadlines
from .running.item_outcome import ItemOutcome
from .running.parent_results import bring_parents
from .service import LONGEST_PAUSE, SHORTEST_PAUSE, Service

POLL = 1.0  # seconds between looks when nobody wakes us
AFTER_CANCEL = 1.0  # seconds that a cancelled claim may take to hand back what it took


class Pull:
    """One pull claim: items inside the block, nothing left behind after it."""

    def __init__(
        self,
        app: Any,
        tasks: Sequence[Any],
        routing_key: Routing,
        limit: int,
        max_wait: Duration,
        lease: Duration | None,
    ) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidCall(f"limit must be a whole number of at least 1, it is {limit!r}")
        self._app = app
        if not tasks:
            raise InvalidCall("app.claim takes a list of tasks or their names: tasks=[…]")
        self._asked_tasks = check_names(tasks, "tasks")
        self._routing = check_routing(routing_key)
        self._limit = limit
        self._max_wait = micros_of(max_wait, "max_wait") / SECOND
        self._lease = None if lease is None else micros_of(lease, "lease", positive=True)
        self._worker = f"{socket.gethostname()}-{os.getpid()}-pull-{new_id()[-6:]}"
        self._held = HeldJobs()
        self._store: Storage
        self._now = reader(app.clock)
        self._definitions: dict[str, TaskDefinition] = {}
        self._adopting: list[Attempt] = []  # claimed, and not items yet

    async def __aenter__(self) -> list[Item[Any]]:
        self._store = await self._app._runtime.storage()
        self._place = await self._app._runtime.open()
        self._place.acquire()
        self._teller = _Teller(self._store, self._held, self._now)
        self._ends = Completion(self._now, self._teller.tell, lambda: None, StoreContextBackend(self._store))
        self._held.tell = self._teller.tell
        self._orphans = Orphans(self._held, self._at_hand, self._teller.at_hand)
        self._deadlines = Deadlines(self._held, self._overdue)
        recently_long = self._ends.recently_long
        self._keeper = LeaseKeeper(self._store, self._held, lambda: None, recently_long, lease=self._lease)
        self._keeping = Service("keeper", self._keeper.run)
        self._keeping.start()
        self._house = PullUpkeep.of(self._place)
        self._house.enter(self._worker)
        try:
            return await self._filled()
        except BaseException:
            await self._hand_back()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._hand_back()

    async def _hand_back(self) -> None:
        self._deadlines.close()
        for attempt in self._held.where(lambda attempt: not attempt.ended):
            if attempt.at_work:
                attempt.lose(Loss.SHUTDOWN)
                self._ends.finish(attempt, None, asyncio.CancelledError())
            else:  # what broke came before it was made an item
                attempt.ended = True
                self._teller.tell(attempt, hand_back(attempt))
        try:
            await asyncio.gather(*self._ends.settling, return_exceptions=True)
            await self._teller.flush()
        finally:
            self._orphans.close()
            await self._keeping.stop()
            await self._house.leave(self._worker)
            await self._place.release()

    # -- claiming ------------------------------------------------------------------------------------
    async def _filled(self) -> list[Item[Any]]:
        """As many as were asked for; after `max_wait`, what there is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait
        woken = asyncio.Event()
        stop = self._store.listen("ready", woken.set)
        items: list[Item[Any]] = []
        try:
            while True:
                woken.clear()
                asked_at = boottime()
                answer = await self._ask(self._limit - len(items))
                items += await self._adopt(answer.claimed, asked_at)
                left = deadline - loop.time()
                alone = any(record.suspect for record in answer.claimed)
                if len(items) >= self._limit or left <= 0 or alone:
                    return items
                due = POLL if answer.next_due is None else answer.next_due / SECOND
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, due, POLL)):
                        await woken.wait()
        finally:
            stop()

    async def _ask(self, limit: int) -> ExchangeResult:
        limit = min(limit, self._store.chunk)
        answer = await self._exchange(Want(limit, None, self._names(), self._routing))
        if len(answer.claimed) < limit:
            under_limits = Want(limit - len(answer.claimed), None, self._names(), self._routing, limited=True)
            answer = _together(answer, await self._exchange(under_limits))
        if not answer.claimed and answer.suspects and not len(self._held):  # they run alone
            for limited in (False, True):
                answer = await self._exchange(Want(1, None, self._names(), self._routing, True, limited))
                if answer.claimed:
                    break
        return answer

    async def _exchange(self, want: Want) -> ExchangeResult:
        """One claim. Whatever happens to us meanwhile, nothing that it took stays behind unknown."""
        claim = Claim(self._worker, new_stamp(), (want,))
        asking = asyncio.ensure_future(self._store.exchange((), claim))
        try:
            answer = await asyncio.shield(asking)
            self._house.reached()
            return answer
        except StoreError:
            try:
                return ExchangeResult(claimed=await self._store.recover_claim(claim.worker, claim.stamp))
            except BaseException:
                self._hand_back_later(claim, None)
                raise
        except (
            BaseException
        ):  # a cancelled caller need not wait for long: what the claim takes is handed back later, too
            await asyncio.wait([self._hand_back_later(claim, asking)], timeout=AFTER_CANCEL)
            raise

    def _hand_back_later(self, claim: Claim, asking: asyncio.Future[ExchangeResult] | None) -> asyncio.Task[None]:
        """See to it that nothing of a claim is left behind whose answer we do not have."""
        place = self._place

        async def hand_back_all() -> None:
            try:
                await hand_back_unanswered(place.storage, claim, asking)
            finally:
                await place.release()

        place.acquire()
        return run_in_background(hand_back_all(), "perdure strays")

    def _names(self) -> tuple[str, ...]:
        """The wanted names, aliases of tasks that are known here with them."""
        known = self._app.definitions()
        names: dict[str, None] = {}
        for name in self._asked_tasks:
            definition = known.get(name)
            names.update(dict.fromkeys([name] if definition is None else [definition.name, *definition.aliases]))
        return tuple(names)

    # -- items ---------------------------------------------------------------------------------------
    async def _adopt(self, records: Sequence[Record], asked_at: float) -> list[Item[Any]]:
        other_lease = self._lease is not None and any(record.lease != self._lease for record in records)
        attempts = [self._attempt(record, asked_at) for record in records]
        self._adopting = attempts
        self._held.add(attempts)
        self._house.note_queues(records)
        following = [attempt for attempt in attempts if attempt.record.after is not None]
        if following:
            for attempt, end in (await bring_parents(self._store, following)).items():
                self._ends.finish(attempt, None, end)
        items = [self._item(attempt) for attempt in attempts if not attempt.ended]
        self._adopting = []
        if other_lease:
            # a claim gives each job its own lease, a renewal the one that was asked for: failing this one, the next
            with suppress(StoreError):
                await self._keeper.renew_these([attempt for attempt in attempts if attempt.at_work])
        return [item for item in items if item is not None]

    def _at_hand(self) -> list[Attempt]:
        """Attempts that become items, that are the caller's, or whose end is being made ready for the store."""
        return [*self._adopting, *self._held.at_work(), *self._ends.settling.values()]

    def _attempt(self, record: Record, asked_at: float) -> Attempt:
        """An attempt with the lease that was asked for. Until its first renewal it is trusted for no longer than the job's
        own lease, which is what the claim gave."""
        attempt = Attempt.of(record, self._definition(record.task), asked_at)
        if self._lease is not None:
            record.lease = min(record.lease, self._lease)
            attempt.trust(asked_at)
            record.lease = self._lease
        return attempt

    def _item(self, attempt: Attempt) -> Item[Any] | None:
        attempt.started_at = attempt.record.started_at = self._now()
        attempt.started_boot = boottime()
        assert attempt.definition is not None
        try:
            args = self._args(attempt)
        except KeyboardInterrupt:
            raise
        except BaseException as unfit:  # types of the user's making may raise anything
            self._ends.finish(attempt, None, unfit)
            return None
        reporter = ItemOutcome(attempt, self._ends.finish, self._teller.confirm)
        speaker, loop = StoreContextBackend(self._store), asyncio.get_running_loop()
        item: Item[Any] = Item(self._app, attempt.record, self._worker, speaker, loop, reporter, args)
        attempt.context = item
        if attempt.parents:
            item._parents = attempt.parents
        self._deadlines.watch(attempt)
        return item

    def _args(self, attempt: Attempt) -> Any:
        """The argument of a batch task; of any other task the arguments by name, checked if the task is known here."""
        definition, payload = attempt.definition, attempt.record.payload
        if definition is None or attempt.record.task not in self._app.definitions():
            return codec.decode(payload)
        if definition.batch is not None:
            return definition.arguments(payload)[0][0]
        return definition.named(payload)

    def _definition(self, task: str) -> TaskDefinition:
        if task not in self._definitions:
            known = self._app.definitions().get(task)
            self._definitions[task] = known or _stranger(self._app, task)
        return self._definitions[task]

    def _overdue(self, attempt: Attempt) -> None:
        if attempt.lose(Loss.TIMEOUT):
            self._ends.finish(attempt, None, None)


def _together(first: ExchangeResult, second: ExchangeResult) -> ExchangeResult:
    due = [each.next_due for each in (first, second) if each.next_due is not None]
    claimed = [*first.claimed, *second.claimed]
    return ExchangeResult(claimed=claimed, next_due=min(due, default=None), suspects=first.suspects or second.suspects)


class _Teller:
    """Tells the store what became of items, those that come together in one call."""

    def __init__(self, store: Storage, held: HeldJobs, now: MicrosReader) -> None:
        self._store = store
        self._held = held
        self._now = now
        self._ended: list[tuple[Attempt, Change]] = []
        self._confirming: dict[Attempt, asyncio.Future[Verdict | None]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._batch: list[tuple[Attempt, Change]] = []  # being written

    def at_hand(self) -> list[Attempt]:
        """Attempts whose end is being reported."""
        return [attempt for attempt, _ in [*self._ended, *self._batch]]

    def confirm(self, attempt: Attempt) -> asyncio.Future[Verdict | None]:
        confirmed: asyncio.Future[Verdict | None] = asyncio.get_running_loop().create_future()
        self._confirming[attempt] = confirmed
        return confirmed

    def tell(self, attempt: Attempt, change: Change | None) -> None:
        if change is None:
            self._over(attempt, None)
            return
        attempt.said_change = True
        self._ended.append((attempt, change))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="perdure pull")

    async def flush(self) -> None:
        """All that was told is on record, or the leases are over."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        try:
            while self._ended:
                self._batch, self._ended = self._ended[: self._store.chunk], self._ended[self._store.chunk :]
                await self._write_batch(self._batch)
        finally:
            self._batch, self._writing = [], None

    async def _write_batch(self, batch: list[tuple[Attempt, Change]]) -> None:
        pause = SHORTEST_PAUSE
        while True:
            try:
                verdicts = await self._store.apply([change for _, change in batch])
                break
            except StoreError as error:  # the same word again is recognised
                if all(attempt.trusted_until <= boottime() for attempt, _ in batch):
                    log.pull_not_stored(len(batch), error)
                    self._fail(batch, error)
                    return
            except Exception as error:
                if len(batch) > 1:  # one of them cannot be stored
                    for each in batch:
                        await self._write_batch([each])
                else:
                    await self._fail_instead(*batch[0], error)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        for (attempt, change), verdict in zip(batch, verdicts, strict=True):
            if verdict.refusal is not None and change.state is not None:
                log.report_refused(attempt.record, verdict.refusal)
            if (last := after_refusal(attempt, change, verdict.refusal)) is not None:
                self._ended.append((attempt, last))
            self._over(attempt, verdict)

    async def _fail_instead(self, attempt: Attempt, change: Change, error: Exception) -> None:
        """What became of an item cannot be stored: that is its failure."""
        log.change_not_stored(attempt.record, error)
        with suppress(Exception):
            await self._store.apply([decide(attempt.record, failed(attempt, error, self._now, retryable=True))])
        self._fail([(attempt, change)], error)

    def _over(self, attempt: Attempt, verdict: Verdict | None) -> None:
        self._held.drop(attempt)
        confirmed = self._confirming.pop(attempt, None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(verdict)

    def _fail(self, batch: list[tuple[Attempt, Change]], error: Exception) -> None:
        for attempt, _ in batch:
            self._held.drop(attempt)
            confirmed = self._confirming.pop(attempt, None)
            if confirmed is not None and not confirmed.done():
                confirmed.set_exception(error)
                confirmed.exception()  # whoever waited for it may be gone


def _stranger(app: Any, name: str) -> TaskDefinition:
    """A task that this process has no handler of: its results can be written all the same."""

    async def anything() -> None: ...

    return TaskDefinition(TaskDeclaration(app, anything, name, (), {}, None), name, (), {}, app.settings.max_bytes)
