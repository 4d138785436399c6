"""One run of a worker, from start to stop: constructs all parts in order, and starts and stops them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from ..core.clock import reader
from ..core.job import Loss
from ..observe import log
from ..schedules.scheduler import Scheduler
from ..storage.contract import Storage
from ..tasks.definition import TaskDefinition
from ..tasks.providers import Opened
from ..upkeep.store_contact import StoreContact
from .claiming.answer_timeout import AnswerTimeout
from .claiming.claim_loop import ClaimLoop
from .claiming.demand import Demand
from .claiming.demand_limited import LimitedDemand
from .claiming.demand_per_task import PerTaskDemand
from .claiming.parent_results import Followers
from .claiming.seen_queues import SeenQueues
from .claiming.wakeup import Wakeup
from .completion_queue import CompletionQueue
from .health.claim_watchdog import ClaimWatchdog
from .health.heartbeat import Heartbeat
from .health.loop_watchdog import LoopWatchdog
from .health.probe import Condition
from .health.store_trouble import StoreRecovery
from .health.unknown_tasks import UnknownTasks
from .host import WorkerHost
from .leases.held_jobs import HeldJobs
from .leases.lease_keeper import LeaseKeeper
from .leases.orphans import Orphans
from .leases.status_board import RunnerBoard
from .options import WorkerOptions
from .pull_upkeep import LONGEST_ROUND, upkeep_of
from .running.attempt import Attempt, hand_back, stop_change_of
from .running.context_backend import StoreContextBackend
from .running.slots import Slots
from .service import Service

CANCEL_WITHIN = 5.0  # seconds that handlers get to end after they were cancelled
REPORT_WITHIN = 10.0  # seconds for the last reports to reach the store
SERVICE_END = 5.0  # seconds for background loops to end by themselves


class WorkSession:
    """The parts of a running worker."""

    def __init__(
        self,
        host: WorkerHost,
        options: WorkerOptions,
        board: RunnerBoard | None,
        store: Storage,
        definitions: Mapping[str, TaskDefinition],
    ) -> None:
        self._host = host
        self._options = options
        self._store = store
        now = reader(host.app.clock)
        tasks = options.wanted_tasks(definitions)
        self._tasks = tasks
        self._known = tuple(sorted(definitions))
        self._definitions = [each for name, each in definitions.items() if tasks is None or name in tasks]
        self._opened = Opened()
        self._contact = StoreContact()
        self._unlisten: Callable[[], None] = _nothing
        self._wakeup = Wakeup()
        self.held = held = HeldJobs(board)
        self._completions = completions = CompletionQueue(held, self._wakeup)
        self._recovery = StoreRecovery(store, self._wakeup)
        self.slots = slots = Slots(
            app=host.app,
            worker=options.id,
            concurrency=options.concurrency,
            batch_sizes=options.batch_sizes(definitions),
            held=held,
            completions=completions,
            recovery=self._recovery,
            backend=StoreContextBackend(store),
            opened=self._opened,
            now=now,
        )
        followers = Followers(store, slots, completions)
        asked = (options.queues, tasks, options.routing)
        per_task = PerTaskDemand(definitions, *asked, store.chunk, held, slots.batches)
        demand = Demand(
            store=store,
            held=held,
            slots=slots,
            followers=followers,
            recovery=self._recovery,
            per_task=per_task if per_task.is_needed else None,
            limited=LimitedDemand(definitions, *asked, held),
            queues=options.queues,
            tasks=tasks,
            routing=options.routing,
        )
        queues = SeenQueues(store)
        self.claim_loop = ClaimLoop(
            store=store,
            worker=options.id,
            definitions=definitions,
            poll=options.poll,
            held=held,
            completions=completions,
            slots=slots,
            followers=followers,
            demand=demand,
            recovery=self._recovery,
            queues=queues,
            wakeup=self._wakeup,
            now=now,
            reached=self._contact.note_answer,
        )
        self._orphans = Orphans(
            held, slots.attempts, followers.attempts, completions.attempts, self.claim_loop.attempts
        )
        keeper = LeaseKeeper(store, held, completions, self._contact.note_answer, slots.recently_long)
        timeout = AnswerTimeout(4 * store.answer_timeout, LONGEST_ROUND)
        self._scheduler = Scheduler(store, host.declared_schedules(), definitions, timeout.answer)
        self.heartbeat = Heartbeat(
            store,
            options,
            slots,
            completions,
            tasks=tasks,
            known=definitions,
            known_tasks=host.app.definitions,
            started_at=now(),
        )
        self.claiming = Service("claim loop", self.claim_loop.run, self._contact)
        self._watchdog = ClaimWatchdog(
            self.claim_loop, options.poll, self.claiming, store.reconnect, self._hand_back_orphans
        )
        upkeep = upkeep_of(store, self._contact, options.id.__eq__, self.may_expire, self.keeps_briefly)
        self.services = [
            Service("keeper", keeper.run, self._contact),
            self.claiming,
            Service("upkeep", upkeep.run),
            Service("schedules", self._scheduler.run),
            Service("sign of life", self.heartbeat.run),
            Service("watch", self._watchdog.run),
            Service("names of queues", queues.run),
        ]
        if options.unknown == "leave":
            unknown = UnknownTasks(store, options.id, self._known, options.queues)
            self.services.append(Service("look for unknown tasks", unknown.run))
        relay = host.relay()
        if relay is not None:
            self.services.append(Service("relay", relay.run))
        self._loop_watchdog = LoopWatchdog(lambda: slots.on_loop > 0, Slots.driver_code())

    # -- start ---------------------------------------------------------------------------------------
    async def start(self) -> None:
        for definition in self._definitions:
            definition.check_provided()
        await self._opened.open(
            provider
            for definition in self._definitions
            for provider in definition.provided.values()
            if provider.scope == "worker" and definition.run_in != "process"  # children open their own
        )
        try:
            await self._start_parts()
        except BaseException:
            self._unlisten()
            await self.slots.close()
            await self._close_opened()
            await self.heartbeat.take_back_first()
            raise

    async def _start_parts(self) -> None:
        self.slots.prepare(self._definitions)
        queues = None if self._options.queues is None else frozenset(self._options.queues)
        self._unlisten = self._store.listen("ready", self._wakeup.signal, queues)
        await self.heartbeat.write_first()
        await self._host.write_subscriptions(self._store)
        await self._scheduler.begin()
        for service in self.services:
            service.start()
        self._loop_watchdog.start()
        options = self._options
        log.worker_started(options.id, self._tasks or ("all",), options.concurrency, self._store.name)

    # -- stop ----------------------------------------------------------------------------------------
    async def flush(self, seconds: float) -> None:
        """Claim nothing more, hand back what has not started, report what has ended."""
        self.slots.stop_accepting()
        await self._wait_until(lambda: self.claim_loop.is_idle, seconds, None)

    async def stop(self, grace: float, hurry: asyncio.Event) -> None:
        slots, claim_loop = self.slots, self.claim_loop
        log.worker_stopping(self._options.id, slots.running, grace)
        self._unlisten()
        slots.stop_accepting()
        stuck = self._watchdog.stuck  # no report reaches the store any more: there is nothing to wait for
        cancel_within, report_within, service_end = (
            (0.5, 0.0, 0.5) if stuck else (CANCEL_WITHIN, REPORT_WITHIN, SERVICE_END)
        )
        await self._wait_until(lambda: not slots.busy, 0.0 if stuck else grace, hurry)
        for attempt in self.held.at_work():
            self._completions.lose(attempt, Loss.SHUTDOWN)
        await self._wait_until(lambda: not slots.busy, cancel_within, None)
        self._orphans.close()
        for attempt in self.held.at_work():
            log.handler_goes_on(attempt.record, cancel_within)
            self._give_up(attempt)
        await self._wait_until(lambda: claim_loop.is_idle or not self.claiming.lives, report_within, None)
        self._loop_watchdog.stop()
        self._recovery.close()
        for service in self.services:
            service.stopping.set()
        self._wakeup.wake()  # the claim loop may sleep until its next poll
        self._scheduler.wake()
        await asyncio.gather(*(service.stop(service_end) for service in self.services))
        await slots.close()
        await self._close_opened()
        if not stuck:
            await self.heartbeat.remove()
        log.worker_stopped(self._options.id, self.held.confirmed)

    def _give_up(self, attempt: Attempt) -> None:
        """The code of this attempt does not stop, and ends with the process. The supervisor hands its job back after that
        end. Without a supervisor it is handed back now, since nobody else will do it."""
        if self.held.board is not None:
            self.held.board.end(attempt)
        elif attempt.lost is Loss.SHUTDOWN:
            attempt.ended = True
            self._completions.report(attempt, hand_back(attempt))

    async def _close_opened(self) -> None:
        try:
            await self._opened.close()
        except Exception as error:
            log.service_failed("closing of what was provided", error)

    async def _wait_until(self, done: Callable[[], bool], seconds: float, hurry: asyncio.Event | None) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pause = 0.005
        while not done() and loop.time() < deadline and not (hurry is not None and hurry.is_set()):
            self._wakeup.wake()
            await asyncio.sleep(pause)
            pause = min(pause * 1.1, 0.1)  # a runner that leaves may wait for hours

    # -- while it runs -------------------------------------------------------------------------------
    def _hand_back_orphans(self) -> None:
        """Hand back what is held and not worked on. There should be none, but if there is, its lease must end."""
        for attempt in self._orphans.lasting():
            log.attempt_orphaned(attempt.record)
            attempt.ended = True
            self._completions.report(attempt, hand_back(attempt) if attempt.lost is None else stop_change_of(attempt))

    def may_expire(self) -> bool:
        """Whether jobs of this app may expire, as far as this process knows."""
        tasks = (each.options.get("expires") for each in self._definitions)
        return self._host.expires or any(expires is not None for expires in tasks)

    def keeps_briefly(self) -> bool:
        """Whether jobs of this app are kept for a short time only, as far as this process knows."""
        kept = (each.options.get(name) for each in self._definitions for name in ("retention", "dead_retention"))
        return self._host.brief or any(retention is not None and retention.brief for retention in kept)

    def condition(self) -> Condition:
        ended = [service.name for service in self.services if not service.lives]
        trouble = [
            *(f"{name} has ended" for name in ended),
            *(() if self._watchdog.turns else ("the event loop is blocked",)),
            *(("claims are not answered over new connections either: restart it",) if self._watchdog.stuck else ()),
        ]
        live = not trouble
        if self._recovery.under_way:
            trouble.append("the store failed under a handler; nothing is claimed until it works again")
        unanswered = monotonic() - self.claim_loop.answered_at
        if not self._watchdog.claims:
            trouble.append(f"no claim has been answered for {unanswered:.0f} s")
        facts = {
            **self.heartbeat.about,
            "worker": self._options.id,
            "tasks": self._known,
            "running": self.slots.running,
            "last_claim": round(unanswered, 3),
        }
        return Condition(live, not trouble, "; ".join(trouble) or None, facts)


def _nothing() -> None: ...
