"""Pull claims: `async with app.claim(tasks=["embed"], limit=32) as items`.

The block is a small worker without slots. What it claimed is held, renewed and timed like the jobs of any worker, and the
program gives each item its outcome. Items without an outcome are handed back when the block ends, free of charge.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from ..core.clock import SECOND, Duration, MicrosReader, boottime, micros_of, reader
from ..core.encoding import codec
from ..core.ids import new_id, new_stamp
from ..core.job import Loss, Routing
from ..core.lifecycle import Change
from ..core.record import Record
from ..core.validation import check_names, check_routing
from ..errors import InvalidCall, StoreError
from ..handler.item import Item
from ..observe import log
from ..storage.contract import Claim, ExchangeResult, Storage, Verdict, Want
from ..tasks.definition import TaskDeclaration, TaskDefinition
from .claiming.parent_results import read_parents
from .claiming.single_reports import SingleReports
from .claiming.unanswered_claims import hand_back_unanswered, run_in_background
from .claiming.wakeup import Wakeup
from .completion_queue import CompletionQueue, End, attempt_of, change_of
from .host import HostApp, host_of
from .leases.held_jobs import HeldJobs
from .leases.lease_keeper import LeaseKeeper
from .leases.orphans import Orphans
from .pull_upkeep import PullUpkeep
from .running.attempt import Attempt, hand_back
from .running.completion import Completion
from .running.context_backend import StoreContextBackend
from .running.deadlines import Deadlines
from .running.start import Starter
from .service import Service, retry_pause

if TYPE_CHECKING:
    from ..tasks.registry import Registry

POLL = 1.0  # seconds between two claims when no signal arrives
LONGEST_SLEEP = 60.0  # seconds
AFTER_CANCEL = 1.0  # seconds that a cancelled claim may take to hand back what it took


class Pull:
    """One pull claim: items inside the block, nothing left behind after it."""

    def __init__(
        self,
        app: HostApp,
        tasks: Sequence[Any],
        routing_key: Routing,
        limit: int,
        max_wait: Duration,
        lease: Duration | None,
    ) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidCall(f"limit must be a whole number of at least 1, it is {limit!r}")
        self._host = host_of(app)
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
        self._store = await self._host.storage()
        self._share = await self._host.open()
        self._share.acquire()
        wakeup = Wakeup()
        self._completions = CompletionQueue(self._held, wakeup)
        self._writer = _Writer(self._store, self._completions, wakeup, self._now)
        backend = StoreContextBackend(self._store)
        self._completion = Completion(self._now, self._completions, backend)
        self._starter = Starter(
            app=self._host.app,
            worker=self._worker,
            held=self._held,
            completions=self._completions,
            completion=self._completion,
            backend=backend,
            now=self._now,
        )
        self._orphans = Orphans(self._held, self._attempts, self._completions.attempts, self._writer.attempts)
        self._deadlines = Deadlines(self._held, self._overdue)
        self._keeper = LeaseKeeper(
            self._store,
            self._held,
            self._completions,
            lambda: None,
            self._completion.recently_long,
            lease=self._lease,
        )
        self._keeping = Service("keeper", self._keeper.run)
        self._keeping.start()
        self._upkeep = PullUpkeep.of(self._share)
        self._upkeep.enter(self._worker)
        try:
            return await self._fill()
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
                self._completion.finish(attempt, None, asyncio.CancelledError())
            else:  # something broke before it became an item
                attempt.ended = True
                self._completions.report(attempt, hand_back(attempt))
        try:
            await asyncio.gather(*self._completion.finishing, return_exceptions=True)
            await self._writer.close()
        finally:
            self._orphans.close()
            await self._keeping.stop()
            await self._upkeep.leave(self._worker)
            await self._share.release()

    # -- claiming ------------------------------------------------------------------------------------
    async def _fill(self) -> list[Item[Any]]:
        """Claim as many as were asked for; after `max_wait`, what there is."""
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
        """Make one claim. Whatever happens meanwhile, no job that it took stays behind unknown."""
        claim = Claim(self._worker, new_stamp(), (want,))
        asking = asyncio.ensure_future(self._store.exchange((), claim))
        try:
            answer = await asyncio.shield(asking)
            self._upkeep.note_answer()
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
        """Hand back, in the background, what a claim took whose answer is missing."""
        share = self._share

        async def hand_back_all() -> None:
            try:
                await hand_back_unanswered(share.storage, claim, asking)
            finally:
                await share.release()

        share.acquire()
        return run_in_background(hand_back_all(), "perdure strays")

    def _names(self) -> tuple[str, ...]:
        """The wanted names, aliases of tasks that are known here with them."""
        known = self._host.app.definitions()
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
        for replaced in self._held.add(attempts):
            self._completions.lose(replaced, Loss.TAKEN_BY_ANOTHER_WORKER)
        self._upkeep.note_queues(records)
        following = [attempt for attempt in attempts if attempt.record.after is not None]
        if following:
            for attempt, end in (await read_parents(self._store, following)).items():
                self._completion.finish(attempt, None, end)
        items = [self._item(attempt) for attempt in attempts if not attempt.ended]
        self._adopting = []
        if other_lease:
            # a claim gives each job its own lease, a renewal the one that was asked for: failing this one, the next
            with suppress(StoreError):
                await self._keeper.renew_these([attempt for attempt in attempts if attempt.at_work])
        return [item for item in items if item is not None]

    def _attempts(self) -> list[Attempt]:
        """Attempts that become items, that are the caller's, or whose end is being made ready for the store."""
        return [*self._adopting, *self._held.at_work(), *self._completion.finishing.values()]

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
        attempt.started_boot = boottime()
        item = self._starter.start_item(attempt, self._args)
        if item is not None:
            self._deadlines.watch(attempt)
        return item

    def _args(self, attempt: Attempt) -> Any:
        """The argument of a batch task; of any other task the arguments by name, checked if the task is known here."""
        definition, payload = attempt.definition, attempt.record.payload
        if definition is None or attempt.record.task not in self._host.app.definitions():
            return codec.decode(payload)
        if definition.batch is not None:
            return definition.arguments(payload)[0][0]
        return definition.named(payload)

    def _definition(self, task: str) -> TaskDefinition:
        if task not in self._definitions:
            known = self._host.app.definitions().get(task)
            self._definitions[task] = known or _unknown_task(self._host.app, task)
        return self._definitions[task]

    def _overdue(self, attempt: Attempt) -> None:
        if attempt.lose(Loss.TIMEOUT):
            self._completion.finish(attempt, None, None)


def _together(first: ExchangeResult, second: ExchangeResult) -> ExchangeResult:
    due = [each.next_due for each in (first, second) if each.next_due is not None]
    claimed = [*first.claimed, *second.claimed]
    return ExchangeResult(claimed=claimed, next_due=min(due, default=None), suspects=first.suspects or second.suspects)


class _Writer:
    """Writes the ends of a pull claim to the store, those that come together in one call."""

    def __init__(self, store: Storage, completions: CompletionQueue, wakeup: Wakeup, now: MicrosReader) -> None:
        self._store = store
        self._completions = completions
        self._wakeup = wakeup
        self._single_reports = SingleReports(completions, self._apply, now, raise_to_caller=True)
        self._batch: list[End] = []  # being written
        self._closing = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="perdure pull")

    def attempts(self) -> Iterator[Attempt]:
        """Attempts whose end is being written."""
        return map(attempt_of, self._batch)

    async def close(self) -> None:
        """Wait until everything is written, or the leases are over."""
        self._closing = True
        self._wakeup.wake()
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        pause = retry_pause()
        while len(self._completions) or not self._closing:
            if not len(self._completions):
                await self._wakeup.sleep(LONGEST_SLEEP)
                continue
            self._batch = self._completions.take(self._store.chunk)
            try:
                await self._write(self._batch)
                pause.reset()
            except StoreError as error:  # the store recognises a change that it has already
                if all(attempt.trusted_until <= boottime() for attempt, _ in self._batch):
                    log.pull_not_stored(len(self._batch), error)
                    self._completions.give_up(self._batch, error)
                    continue
                self._completions.put_back(self._batch)
                await asyncio.sleep(pause.next())
            finally:
                self._batch = []

    def _apply(self, changes: Sequence[Change]) -> Awaitable[Sequence[Verdict]]:
        return self._store.apply(changes)

    async def _write(self, batch: list[End]) -> None:
        try:
            verdicts = await self._apply([*map(change_of, batch)])
        except StoreError:
            raise
        except Exception:
            await self._single_reports.report(batch)
        else:
            self._completions.record_verdicts(batch, verdicts)


def _unknown_task(app: HostApp, name: str) -> TaskDefinition:
    """A definition for a task without a handler in this process: its results can be written all the same."""

    async def anything() -> None: ...

    return TaskDefinition(
        TaskDeclaration(cast("Registry", app), anything, name, (), {}, None), name, (), {}, app.settings.max_bytes
    )
