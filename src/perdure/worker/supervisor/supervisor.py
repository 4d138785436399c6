"""The supervisor: a small process that keeps runners at work.

It runs no user code. It starts the runners (spawned, never forked), renews their leases, notices when one dies and reports
the loss at once, and kills one that is stuck in a job whose time is over. One more runner than needed stands ready, so that
the next attempt need not wait for an interpreter to start and an app to be imported.

    STARTING ── hello ──▶ READY ── go ──▶ WORKING ── leave, stop ──▶ LEAVING ──▶ gone
                                             └──── its job does not stop: CONDEMNED ──▶ killed

A runner that is worn (so many jobs, so much memory, a thread that never stops) or of an older generation (SIGHUP) is
replaced: first there is another one at work, then it is told to leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ...core.clock import boottime, reader
from ...core.ids import new_id
from ...errors import StoreError
from ...observe import log
from ...observe.scaling_hint import Scale, scale
from ...storage.contract import Storage
from ..health.crash_evidence import ending
from ..health.probe import Condition, Probe
from ..leases.status_board import Seen
from ..service import Service
from .lease_renewals import Renewals
from .loss_reports import Death, report
from .runner_process import Phase, RunnerProcess

TICK, IDLE_TICK = 0.1, 0.5  # seconds between two looks; a death and a word wake it at once
FLUSH_WITHIN = 0.5  # seconds for a condemned runner to say what can be said
SHOWN_WITHIN = 0.1  # seconds to write down where its threads are
LAST_WORDS = 17.0  # seconds beyond its grace that a runner has at a stop: told to stop, flush, goodbye
DEAF_FOR = 5.0  # seconds without a sign of life from its loop, and after its grace
BETWEEN_STARTS = 1.0  # seconds between two starts, once all have been started
LONGEST_PAUSE = 30.0  # between starts that fail
WEIGHED_EVERY = 1.0


@dataclass(frozen=True)
class Team:
    """What a supervisor keeps at work."""

    command: Sequence[str]  # how a runner is started; what it inherits is appended
    options: dict[str, Any]  # what every runner is told
    name: str
    open_app: Callable[[str], Any]  # an app on the store of this URL, for the supervisor's own use
    processes: int = 1
    spares: int = 1
    grace: float = 30.0
    max_jobs: int | None = None
    max_memory: int | None = None  # bytes
    probe: dict[str, Any] | None = None  # what a Probe takes: port, host, file


@dataclass(frozen=True)
class Ended:
    """How it ended. `alone`: nothing was begun, since the store lives in one process."""

    code: int = 0
    alone: str | None = None


def supervise(team: Team) -> Ended:
    """Keep the team at work until SIGTERM or SIGINT."""
    return asyncio.run(Supervisor(team).run())


class Supervisor:
    def __init__(self, team: Team) -> None:
        self._team = team
        self._members: list[RunnerProcess] = []
        self._number = 0
        self._generation = 0
        self._starts = float(team.processes)  # how many may be started now
        self._counted_at = boottime()
        self._failures = 0  # starts in a row that came to nothing
        self._paused_until = 0.0
        self._weighed_at = 0.0
        self._stopping = asyncio.Event()
        self._kill_at = float("inf")
        self._ended: Ended | None = None  # why, if not because of a signal
        self._wake = asyncio.Event()
        self._opened: asyncio.Task[Storage] | None = None
        self._app: Any = None
        self._url: str | None = None
        self._worked = False  # a runner has come to work
        self._tasks: set[asyncio.Task[None]] = set()
        self._now = reader(None)

    async def run(self) -> Ended:
        loop = asyncio.get_running_loop()
        for number, told in (
            (signal.SIGTERM, self._told_to_stop),
            (signal.SIGINT, self._told_to_stop),
            (signal.SIGHUP, self._told_to_reload),
            (signal.SIGCHLD, self._wake.set),
        ):
            loop.add_signal_handler(number, told)
        renewals = Service("renewals", Renewals(self._store, lambda: list(self._members)).run)
        renewals.start()
        async with self._probe():
            await self._supervise()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await renewals.stop()
        if self._app is not None:
            await self._app.close()
        return self._ended or Ended()

    async def _supervise(self) -> None:
        log.supervisor_started(self._team.name, os.getpid(), self._team.processes, self._team.spares)
        looked_at = boottime()
        while self._members or not self._stopping.is_set():
            looked_at = self._look(looked_at)
            try:
                async with asyncio.timeout(TICK if any(each.busy for each in self._members) else IDLE_TICK):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    # -- one look around -----------------------------------------------------------------------------
    def _look(self, before: float) -> float:
        now = boottime()
        for member in list(self._members):
            if (code := member.exit_code()) is not None:
                self._gone(member, code)
            elif now - before > 1.0:
                member.forgive()
            else:
                self._watch(member, now)
        if self._stopping.is_set():
            self._end_the_deaf(now)
        if not self._stopping.is_set():
            self._weigh(now)
            self._fill(now)
        return now

    def _end_the_deaf(self, now: float) -> None:
        """Told to stop, a runner gets its grace and time for its last words; one that cannot hear, not all of that."""
        for member in self._members:
            deaf = now - member.board.pulse > DEAF_FOR and now >= self._kill_at - LAST_WORDS + DEAF_FOR
            if deaf or now >= self._kill_at:
                member.blameless, member.killed_because = True, "did not stop in time, and was killed"
                member.kill()

    def _watch(self, member: RunnerProcess, now: float) -> None:
        if member.phase not in (Phase.WORKING, Phase.LEAVING):
            return
        if not member.came_to_work and member.worked:
            self._comes_to_work(member)
        if member.stopped_since is not None and member.lapsed(now):
            member.phase = Phase.CONDEMNED
            member.killed_because = "was stopped by a signal for longer than a lease, and killed"
            log.runner_condemned(member.name, "it was stopped by a signal for longer than a lease")
            member.kill()
        elif member.phase is Phase.WORKING and (why := member.beyond_repair()) is not None:
            member.phase = Phase.CONDEMNED
            member.blameless, member.killed_because = True, "was killed, since only a restart helps"
            log.runner_condemned(member.name, f"only a restart helps: {why}")
            member.kill()
        elif stuck := member.stuck(now):
            member.phase = Phase.CONDEMNED
            self._spawn(self._condemn(member, frozenset(seen.hold for seen in stuck)))

    async def _condemn(self, member: RunnerProcess, overdue: frozenset[Any]) -> None:
        """Stop claiming there, let it say what it can, kill it. Its jobs are handed back when it is gone, not before."""
        jobs = ", ".join(sorted(hold.id for hold in overdue))
        log.runner_condemned(member.name, f"job {jobs} is over its timeout and does not stop")
        member.say("quiet")
        try:
            async with asyncio.timeout(FLUSH_WITHIN):
                await member.flushed.wait()
        except TimeoutError:
            pass
        if member not in self._members:
            return
        if not overdue & {seen.hold for seen in member.board.seen()}:  # it stopped after all; it is of no use any more
            member.leave()
            return
        member.overdue = overdue
        member.killed_because = "was killed for that"
        member.tail.expect_dump()
        member.signal(signal.SIGUSR1)  # where its threads are, for the record
        await asyncio.sleep(SHOWN_WITHIN)
        member.kill()

    # -- who is there --------------------------------------------------------------------------------
    def _fill(self, now: float) -> None:
        """As many at work as there should be, the spares ready; those to be replaced leave when others have begun."""
        team = self._team
        fresh = [each for each in self._members if not self._stale(each)]
        working = [each for each in fresh if each.phase is Phase.WORKING]
        for member in [each for each in fresh if each.phase is Phase.READY][: team.processes - len(working)]:
            if self._alone(member):
                return
            member.go()
            working.append(member)
        stale = [each for each in self._members if self._stale(each) and each.phase is Phase.WORKING]
        for member in stale[: max(0, len(working) + len(stale) - team.processes)]:
            member.leave()
        for member in self._members:
            if member.phase is Phase.READY and self._stale(member):
                member.stop()
        wanted = team.processes + (team.spares if len(working) >= team.processes else 0)
        for _ in range(wanted - len(fresh)):
            if not self._may_start(now):
                return
            self._start()

    def _stale(self, member: RunnerProcess) -> bool:
        leaving = member.phase in (Phase.LEAVING, Phase.CONDEMNED)
        return leaving or member.worn or member.generation < self._generation

    def _may_start(self, now: float) -> bool:
        """At most one a second, once all have been started, and less often when starts fail."""
        self._starts = min(self._starts + (now - self._counted_at) / BETWEEN_STARTS, float(self._team.processes))
        self._counted_at = now
        if self._starts < 1 or now < self._paused_until:
            return False
        self._starts -= 1
        return True

    def _start(self) -> None:
        self._number += 1
        name = f"{self._team.name}.{self._number}.{new_id()[-6:]}"
        try:
            member = RunnerProcess(self._team.command, name, self._team.options, self._generation)
        except OSError as error:  # no more processes, memory or descriptors; or Python is being replaced
            log.runner_not_started(name, str(error), self._pause_starts(), others=bool(self._members))
            return
        self._members.append(member)
        self._spawn(member.listen(self._wake.set))
        log.runner_started(name, member.pid)

    def _alone(self, member: RunnerProcess) -> bool:
        """Its hello tells of the store. One that lives in a process cannot be shared with us."""
        assert member.hello is not None
        if member.hello["alone"] is None:
            if self._url is None:
                self._url = member.hello["url"]
                self._spawn(self._open_early())
            return False
        self._ended = Ended(alone=member.hello["alone"])
        self._stop()
        return True

    def _weigh(self, now: float) -> None:
        """Who has done enough is worn. Not all at once: as many leave as work."""
        if now - self._weighed_at < WEIGHED_EVERY:
            return
        self._weighed_at = now
        leaving = sum(each.phase is Phase.LEAVING or each.worn for each in self._members)
        for member in self._members:
            if member.phase is Phase.WORKING and not member.worn and leaving < self._team.processes:
                if (why := self._worn(member)) is not None:
                    member.worn = True
                    leaving += 1
                    log.runner_leaves(member.name, why)

    def _worn(self, member: RunnerProcess) -> str | None:
        team, board = self._team, member.board
        if team.max_jobs is not None and board.settled >= team.max_jobs:
            return f"it has run {board.settled} jobs"
        if board.given_up:
            return "a thread runs on in it though its job is over"
        if team.max_memory is not None and (memory := member.memory()) > team.max_memory:
            return f"it occupies {memory / 1_048_576:.0f} MB"
        return None

    def _comes_to_work(self, member: RunnerProcess) -> None:
        member.came_to_work = self._worked = True
        self._failures = 0

    # -- who is gone ---------------------------------------------------------------------------------
    def _gone(self, member: RunnerProcess, code: int) -> None:
        self._members.remove(member)
        member.kill_group()
        self._wake.set()
        seen, claims = list(member.board.seen()), member.board.claims()
        message = f"runner {member.name} (pid {member.pid}) {member.killed_because or ending(code)}"
        if member.worked:
            self._comes_to_work(member)
        if member.hello is None or (code > 0 and not member.worked):
            self._not_started(member, code)
        elif code or seen:
            log.runner_lost(message, len(seen))
        else:
            log.runner_left(member.name)
        self._spawn(self._bury(member, message, seen, claims))

    async def _bury(self, member: RunnerProcess, message: str, seen: list[Seen], claims: list[int]) -> None:
        if seen or claims or (member.leaves and member.process.returncode != 0):
            death = Death(
                worker=member.name,
                message=message,
                lines=await asyncio.to_thread(member.tail.lines),
                at=self._now(),
                seen=seen,
                claims=claims,
                given_up=member.board.given_up,
                overdue=member.overdue,
                blameless=member.blameless,
                leaves=member.leaves,
            )
            await report(self._store, death, self._stopping)
        if member.process.returncode != 0 and member.hello is not None:
            try:
                await (await self._store()).remove_worker(member.name)
            except Exception as error:
                log.service_failed("goodbye of a runner", error)
        await member.link.close()

    def _not_started(self, member: RunnerProcess, code: int) -> None:
        """It never came to work. If it ended by itself, the app is broken: it cannot be imported, it has no tasks, an option
        or the URL is wrong. Then we end too, unless a runner has worked before. One that was killed is started again."""
        if self._stopping.is_set():
            return
        at_work = any(each.phase is Phase.WORKING for each in self._members)
        if code >= 0 and not self._worked and not at_work:
            self._ended = Ended(code or 1)
            self._stop()
            return
        pause = self._pause_starts()
        log.runner_not_started(member.name, ending(code), pause, others=at_work)
        if any(each.generation < member.generation for each in self._members):
            log.reload_failed(self._team.name)
            for each in self._members:
                each.generation = self._generation

    def _pause_starts(self) -> float:
        """Start no runner for a while, which grows with each failure in a row."""
        self._failures += 1
        pause = min(2.0**self._failures, LONGEST_PAUSE)
        self._paused_until = boottime() + pause
        return pause

    # -- signals -------------------------------------------------------------------------------------
    def _told_to_stop(self) -> None:
        if self._stopping.is_set():
            log.supervisor_reported(self._team.name, "is told to hurry")
            for member in self._members:
                member.say("hurry")
            self._kill_at = min(self._kill_at, boottime() + LAST_WORDS)
        else:
            log.supervisor_reported(self._team.name, "is told to stop")
            self._stop()
        self._wake.set()

    def _stop(self) -> None:
        self._stopping.set()
        self._kill_at = boottime() + self._team.grace + LAST_WORDS
        for member in self._members:
            if member.phase is not Phase.CONDEMNED:
                member.stop()
        self._wake.set()

    def _told_to_reload(self) -> None:
        """New runners start; the old ones leave as those come to work."""
        log.supervisor_reported(self._team.name, "reloads: new runners start, the old ones finish what runs")
        self._generation += 1
        self._starts = float(self._team.processes)
        self._paused_until = 0.0
        self._wake.set()

    # -- how it is -----------------------------------------------------------------------------------
    def _probe(self) -> AbstractAsyncContextManager[Any]:
        async def told(target: float) -> Scale:
            return await scale(await self._store(), target)

        return nullcontext() if self._team.probe is None else Probe(self.condition, scale=told, **self._team.probe)

    def condition(self) -> Condition:
        """It lives while it answers: what is wrong with a runner, it mends itself. It is ready when one of them is."""
        at_work = [each for each in self._members if each.phase is Phase.WORKING]
        trouble = [f"{each.name}: {why}" for each in at_work if (why := each.trouble()) is not None]
        ready = len(trouble) < len(at_work) and not self._stopping.is_set()
        why = (
            "it is stopping"
            if self._stopping.is_set()
            else "; ".join(trouble) or ("" if ready else "no runner is at work")
        )
        facts = {"supervisor": self._team.name, "pid": os.getpid(), "runners": [each.told() for each in self._members]}
        return Condition(live=True, ready=ready, why=why or None, facts=facts)

    # -- the rest ------------------------------------------------------------------------------------
    async def _store(self) -> Storage:
        """Our own connection, opened by the first who asks."""
        if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
            self._opened = asyncio.create_task(self._open(), name="perdure open")
        return await asyncio.shield(self._opened)

    async def _open_early(self) -> None:
        """The first loss should not have to wait for a driver to be imported."""
        try:
            await self._store()
        except Exception as error:
            log.store_out_of_reach("supervisor", error)

    async def _open(self) -> Storage:
        if self._url is None:
            raise StoreError("which store it is, is not known before a runner has come to work")
        if self._app is None:
            self._app = self._team.open_app(self._url)
        storage: Storage = await self._app._runtime.storage()
        return storage

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
