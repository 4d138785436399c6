"""A worker in this process: slots, pump, keeper, upkeep and a sign of life, started and stopped together."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import platform
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar, Literal, Protocol, TypedDict

from ..core.clock import SECOND, Duration, micros_of, reader
from ..core.ids import new_id
from ..core.job import ANY, Loss, Routing
from ..core.validation import check_name, check_names, check_routing
from ..core.verb import needs_loop
from ..errors import InvalidCall, StoreError
from ..observe import log
from ..schedules.scheduler import Scheduler
from ..storage.contract import Storage, WorkerRow
from ..tasks.definition import TaskDefinition
from ..tasks.options import check_size
from ..tasks.providers import Opened
from ..tasks.task import Task
from ..upkeep.store_contact import StoreContact
from .claiming.answer_timeout import AnswerTimeout
from .claiming.claim_loop import ClaimLoop
from .claiming.demand import Demand
from .claiming.demand_limited import LimitedDemand
from .claiming.demand_per_task import PerTaskDemand
from .health.claim_watchdog import ClaimWatchdog
from .health.loop_watchdog import LoopWatchdog
from .health.probe import Condition
from .health.unknown_tasks import UnknownTasks
from .leases.held_jobs import HeldJobs
from .leases.lease_keeper import LeaseKeeper
from .leases.orphans import Orphans
from .leases.status_board import RunnerBoard
from .lifetime import Lifetime
from .pull_upkeep import LONGEST_ROUND, upkeep_of
from .running.attempt import Attempt, hand_back, stopped
from .running.context_backend import StoreContextBackend
from .running.slots import Slots
from .service import Service, rest

BEAT = 10.0  # seconds between two signs of life
LOOK = 2.0  # seconds after which one tells how many handlers run now, if that has changed
TOLD_TO_STOP = 5.0  # seconds that handlers get to end after they were told
FLUSH = 10.0  # seconds for the last words to reach the store
SERVICE_END = 5.0  # seconds for background loops to end by themselves
GOODBYE = 5.0  # seconds for it to hear that the worker is gone


class WorkerSpec(TypedDict, total=False):
    """The options of a worker."""

    queues: Sequence[str] | None
    tasks: Sequence[str | Task[..., Any]] | None
    routing_key: Routing
    concurrency: int
    batch_size: Mapping[str, int]
    name: str
    poll: Duration | None
    grace: Duration
    unknown: Literal["leave", "fail"]


class App(Protocol):
    """Whom a worker works for."""

    @property
    def imports(self) -> tuple[str, ...]: ...
    def definitions(self) -> dict[str, TaskDefinition]: ...


class Worker(Lifetime):
    """Claims and runs jobs in this process.

    `async with app.worker(): …`, or `await worker.run()` until SIGTERM or SIGINT.
    """

    refused: ClassVar[str | None] = None  # why no worker may start in this process

    def __init__(
        self,
        app: App,
        /,
        *,
        queues: Sequence[str] | None = None,
        tasks: Sequence[str | Task[..., Any]] | None = None,
        routing_key: Routing = ANY,
        concurrency: int = 50,
        batch_size: Mapping[str, int] | None = None,
        name: str | None = None,
        poll: Duration | None = None,
        grace: Duration = 30.0,
        unknown: Literal["leave", "fail"] = "leave",
        **mistaken: object,
    ) -> None:
        if not hasattr(app, "imports"):
            raise InvalidCall(f"a worker works for an app, Perdure(…), not for {type(app).__name__}")
        if mistaken:
            known = ", ".join(WorkerSpec.__annotations__)
            raise InvalidCall(f"a worker has no option {', '.join(mistaken)}; it has {known}")
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidCall(f"concurrency must be a whole number of at least 1, it is {concurrency!r}")
        if unknown not in ("leave", "fail"):
            raise InvalidCall(f'unknown must be "leave" or "fail", it is {unknown!r}')
        self._app: Any = app
        self._queues = None if queues is None else check_names(queues, "queues")
        self._asked_tasks = None if tasks is None else check_names(tasks, "tasks")
        self._routing = check_routing(routing_key)
        self._concurrency = concurrency
        self._batch_size = _checked_sizes(batch_size)
        self._poll = 1.0 if poll is None else micros_of(poll, "poll", positive=True) / SECOND
        self._grace = micros_of(grace, "grace") / SECOND
        self._unknown = unknown
        self._running: _Running | None = None
        self._board: RunnerBoard | None = None  # set by a runner that has a supervisor
        super().__init__()
        made = f"{socket.gethostname()}-{os.getpid()}-{new_id()[-6:]}"
        self.id = made if name is None else check_name(name, "name")

    def __repr__(self) -> str:
        return f"<Worker {self.id} {'at work' if self._running else 'stopped'}>"

    @needs_loop
    async def start(self) -> None:
        """Begin to claim. Refuses to start without tasks."""
        if self._running is not None:
            return
        if self.refused is not None:
            raise InvalidCall(self.refused)
        definitions = self._definitions()
        store = await self._app._runtime.storage()
        place = await self._app._runtime.open()
        self._stopped.clear()
        running = _Running(self, store, definitions)
        place.acquire()
        try:
            await running.start()
        except BaseException:
            await place.release()
            raise
        self._running, self._place = running, place

    @property
    def _holds(self) -> int:
        """Jobs that it may speak for."""
        return 0 if self._running is None else len(self._running._held)

    def _quiet(self) -> int | None:
        """How many attempts it has ended so far; None while it holds any or has something to report."""
        running = self._running
        if running is None or running._held or not running._pump.reported:
            return None
        return running._held.settled

    async def _flush(self, seconds: float) -> None:
        """Claim nothing more, hand back what has not begun, say what has ended."""
        if self._running is not None:
            await self._running.flush(seconds)

    async def _stop(self, hurry: asyncio.Event, grace: float | None = None) -> None:
        running, self._running = self._running, None
        if running is not None:
            try:
                await running.stop(self._grace if grace is None else grace, hurry)
            finally:
                await self._place.release()
        self._stopped.set()

    def _condition(self) -> Condition:
        """For probes."""
        if self._running is None:
            return Condition(live=True, ready=False, why="it is not at work", facts={"worker": self.id})
        return self._running.condition()

    def _definitions(self) -> dict[str, TaskDefinition]:
        for module in self._app.imports:
            _import(module)
        known: dict[str, TaskDefinition] = self._app.definitions()
        if not known:
            raise InvalidCall(
                "this worker knows no task: define some with @app.task, or name their modules in Perdure(imports=[…])"
            )
        for name in self._asked_tasks or ():
            if name not in known:
                raise InvalidCall(f"no task named {name!r} is registered; known: {', '.join(sorted(known))}")
        for name in self._batch_size:
            if name not in known or known[name].batch is None:
                raise InvalidCall(f"batch_size names {name!r}, which is no batch task that is registered here")
        return known

    def _wanted_tasks(self, definitions: Mapping[str, TaskDefinition]) -> tuple[str, ...] | None:
        if self._asked_tasks is not None:
            chosen = {definitions[name].name for name in self._asked_tasks}
            return tuple(sorted(name for name, definition in definitions.items() if definition.name in chosen))
        return None if self._unknown == "fail" else tuple(sorted(definitions))


class _Running:
    """What lives between start and stop."""

    def __init__(self, worker: Worker, store: Storage, definitions: Mapping[str, TaskDefinition]) -> None:
        self._worker = worker
        self._store = store
        self._held = HeldJobs(worker._board)
        self._opened = Opened()
        self._first_sign: asyncio.Future[None] | None = None
        self._contact = StoreContact()
        now = reader(worker._app.clock)
        tasks = worker._wanted_tasks(definitions)
        self._tasks = tasks
        self._definitions = [each for name, each in definitions.items() if tasks is None or name in tasks]
        self._about = _about(worker, tasks, definitions)
        self._known = tuple(sorted(definitions))
        self._late: set[str] = set()  # declared since then, and told of
        self._started_at = now()
        sizes = _batch_sizes(definitions, worker._batch_size)
        asked = (worker._queues, tasks, worker._routing)
        menu = PerTaskDemand(definitions, *asked, store.chunk, self._held)
        gates = LimitedDemand(definitions, *asked, self._held)
        appetite = Demand(store, None if menu.plain else menu, gates, *asked)
        self._pump = ClaimLoop(
            store=store,
            worker=worker.id,
            definitions=definitions,
            appetite=appetite,
            poll=worker._poll,
            held=self._held,
            now=now,
            reached=self._reached,
        )
        self._slots = appetite.slots = Slots(
            app=worker._app,
            worker=worker.id,
            concurrency=worker._concurrency,
            held=self._held,
            speaker=StoreContextBackend(store),
            opened=self._opened,
            now=now,
            tell=self._pump.report,
            dry=self._pump.wake,
            confirm=self._pump.confirm,
            store_failed=self._pump.store_failed,
            free_hand_backs=self._pump.free_hand_backs,
            batch_sizes=sizes,
        )
        menu.forming = self._slots.forming
        self._held.tell = self._pump.report
        self._orphans = Orphans(self._held, self._slots.at_hand, self._pump.at_hand)
        self._keeper = LeaseKeeper(store, self._held, self._reached, self._slots.recently_long)
        upkeep = upkeep_of(store, self._contact, worker.id.__eq__, self._expiring, self._brief)
        patience = AnswerTimeout(4 * store.answer_timeout, LONGEST_ROUND)
        self._scheduler = Scheduler(store, worker._app._runtime.declared_schedules(), definitions, patience.answer)
        self._pumping = Service("pump", self._pump.run)
        self._watch = ClaimWatchdog(self._pump, worker._poll, self._pumping, store.reconnect, self._take_in_orphans)
        self._asking = (Service("keeper", self._keeper.run), self._pumping)  # whom the store answers all the time
        self._services = [
            *self._asking,
            Service("upkeep", upkeep.run),
            Service("schedules", self._scheduler.run),
            Service("sign of life", self._beats),
            Service("watch", self._watch.run),
        ]
        self._block_watch = LoopWatchdog(lambda: self._slots.on_loop > 0, Slots.drivers())
        self._services.append(Service("names of queues", self._pump.queues.run))
        if worker._unknown == "leave":
            unknown = UnknownTasks(store, worker.id, self._known, worker._queues)
            self._services.append(Service("look for unknown tasks", unknown.run))
        relay = worker._app._runtime.relay()
        if relay is not None:
            self._services.append(Service("relay", relay.run))
        self._unlisten: Callable[[], None] = _nothing

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
            await self._begin()
        except BaseException:
            self._unlisten()
            await self._slots.close()
            await self._close_opened()
            await self._take_back_sign()
            raise

    async def _begin(self) -> None:
        self._slots.prepare(self._definitions)
        queues = None if self._worker._queues is None else frozenset(self._worker._queues)
        self._unlisten = self._store.listen("ready", self._pump.signalled, queues)
        self._first_sign = asyncio.ensure_future(self._store.heartbeat(self._row()))
        await asyncio.shield(self._first_sign)
        await self._worker._app._runtime.client.publisher.write_subscriptions(self._store)
        await self._scheduler.begin()
        for service in self._services:
            service.start()
        self._block_watch.start()
        log.worker_started(self._worker.id, self._tasks or ("all",), self._worker._concurrency, self._store.name)

    async def _take_back_sign(self) -> None:
        """The sign of life may be on record, or about to be: a cancelled call to the store goes on without its caller."""
        if self._first_sign is not None:
            await asyncio.wait([self._first_sign], timeout=1.0)
            self._first_sign.cancel()
            await asyncio.gather(self._first_sign, return_exceptions=True)
        with suppress(StoreError):
            await self._store.remove_worker(self._worker.id)

    async def flush(self, seconds: float) -> None:
        self._claim_no_more()
        await self._until(lambda: self._pump.is_idle, seconds, None)

    def _claim_no_more(self) -> None:
        self._pump.stop_claiming()
        self._pump.hand_back_waiting()

    async def stop(self, grace: float, hurry: asyncio.Event) -> None:
        log.worker_stopping(self._worker.id, self._slots.running, grace)
        self._unlisten()
        self._claim_no_more()
        stuck = self._watch.stuck  # no word of ours reaches the store any more: there is nothing to wait for
        told_to_stop, flush, service_end = (0.5, 0.0, 0.5) if stuck else (TOLD_TO_STOP, FLUSH, SERVICE_END)
        await self._until(lambda: not self._slots.busy, 0.0 if stuck else grace, hurry)
        for attempt in self._held.at_work():
            self._held.mark_lost(attempt, Loss.SHUTDOWN)
        await self._until(lambda: not self._slots.busy, told_to_stop, None)
        self._orphans.close()
        for attempt in self._held.at_work():
            log.handler_goes_on(attempt.record, told_to_stop)
            self._give_up(attempt)
        await self._until(lambda: self._pump.is_idle or not self._pumping.lives, flush, None)
        self._block_watch.stop()
        self._pump.close()
        for service in self._services:
            service.stopping.set()
        self._pump.wake()  # it may sleep until its next poll
        self._scheduler.wake()
        await asyncio.gather(*(service.stop(service_end) for service in self._services))
        await self._slots.close()
        await self._close_opened()
        if not stuck:
            await self._say_goodbye()
        log.worker_stopped(self._worker.id, self._held.settled)

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(GOODBYE):
                await self._store.remove_worker(self._worker.id)
        except Exception as error:
            log.service_failed("goodbye of the worker", error)

    def _take_in_orphans(self) -> None:
        """Hand back what is held and not worked on. There should be none, but if there is, its lease must come to an end."""
        for attempt in self._orphans.lasting():
            log.attempt_orphaned(attempt.record)
            attempt.ended = True
            self._pump.report(attempt, hand_back(attempt) if attempt.lost is None else stopped(attempt))

    def _give_up(self, attempt: Attempt) -> None:
        """Its code does not stop, and ends with this process. Its job goes back: by our supervisor, who waits for that end,
        or by us, since nobody else will."""
        if self._held.board is not None:
            self._held.board.over(attempt)
        elif attempt.lost is Loss.SHUTDOWN:
            attempt.ended = True
            self._pump.report(attempt, hand_back(attempt))

    async def _close_opened(self) -> None:
        try:
            await self._opened.close()
        except Exception as error:
            log.service_failed("closing of what was provided", error)

    async def _until(self, done: Callable[[], bool], seconds: float, hurry: asyncio.Event | None) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pause = 0.005
        while not done() and loop.time() < deadline and not (hurry is not None and hurry.is_set()):
            self._pump.wake()
            await asyncio.sleep(pause)
            pause = min(pause * 1.1, 0.1)  # a runner that leaves may wait for hours

    async def _beats(self, stopping: asyncio.Event) -> None:
        patience = AnswerTimeout(self._store.answer_timeout)
        told, running = monotonic(), 0
        look = min(LOOK, BEAT)
        while not await rest(stopping, look):
            now = monotonic()
            if now - told > BEAT - look / 2 or self._slots.running != running:
                told, running = now, self._slots.running
                self._tell_of_late_tasks()
                await patience.answer(self._store.heartbeat(self._row()))

    def _tell_of_late_tasks(self) -> None:
        """Their jobs would wait for it in vain."""
        late = self._worker._app.definitions().keys() - self._known - self._late
        if late and self._worker._asked_tasks is None:
            log.tasks_came_late(self._worker.id, sorted(late))
            self._late |= late

    def _expiring(self) -> bool:
        """Whether jobs of this app may expire, as far as this process knows."""
        tasks = (each.options.get("expires") for each in self._definitions)
        return self._worker._app._runtime.expires or any(expires is not None for expires in tasks)

    def _brief(self) -> bool:
        """Whether jobs of this app are kept for a short time only, as far as this process knows."""
        kept = (each.options.get(name) for each in self._definitions for name in ("retention", "dead_retention"))
        return self._worker._app._runtime.brief or any(retention is not None and retention.brief for retention in kept)

    def _reached(self) -> None:
        self._contact.reached()
        for service in self._asking:
            service.worked()

    def _row(self) -> WorkerRow:
        about = json.dumps({**self._about, "ended": self._pump.tally.told()})
        return WorkerRow(self._worker.id, self._started_at, 0, self._slots.running, about)

    def condition(self) -> Condition:
        dead = [service.name for service in self._services if not service.lives]
        trouble = [
            *(f"{name} has ended" for name in dead),
            *(() if self._watch.turns else ("the event loop is blocked",)),
            *(("claims are not answered over new connections either: restart it",) if self._watch.stuck else ()),
        ]
        live = not trouble
        if self._pump.waits_for_store:
            trouble.append("the store failed under a handler; nothing is claimed until it works again")
        if not self._watch.claims:
            trouble.append(f"no claim has been answered for {monotonic() - self._pump.answered_at:.0f} s")
        facts = {
            **self._about,
            "worker": self._worker.id,
            "tasks": self._known,
            "running": self._slots.running,
            "last_claim": round(monotonic() - self._pump.answered_at, 3),
        }
        return Condition(live, not trouble, "; ".join(trouble) or None, facts)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and imports something that is not
        raise InvalidCall(
            f"Perdure(imports=[{module!r}]): there is no module {error.name!r} to import; look at the name, and at sys.path"
        ) from error


def _nothing() -> None: ...


def _checked_sizes(sizes: Mapping[str, int] | None) -> dict[str, int]:
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise InvalidCall(f"batch_size is a mapping of tasks to numbers of jobs, not {type(sizes).__name__}")
    return {name: check_size(size, f"batch_size[{name!r}]") for name, size in sizes.items()}


def _batch_sizes(definitions: Mapping[str, TaskDefinition], chosen: Mapping[str, int]) -> dict[TaskDefinition, int]:
    sizes = {each: each.batch.size for each in definitions.values() if each.batch is not None}
    return sizes | {definitions[name]: size for name, size in chosen.items()}


def _about(worker: Worker, tasks: Sequence[str] | None, known: Collection[str]) -> dict[str, object]:
    """What a worker says about itself."""
    return {
        "version": importlib.import_module(__name__.partition(".")[0]).__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "queues": worker._queues,
        "tasks": tasks,
        "known": None if tasks is None or len(tasks) == len(known) else sorted(known),  # if it takes fewer
        "concurrency": worker._concurrency,
    }
