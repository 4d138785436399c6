"""The supervisor: a small process that keeps runners at work.

It runs no user code. It starts the runners (spawned, never forked), renews their leases, notices when one dies and reports
the loss at once, and kills a runner that is stuck in a job whose time is over. A spare runner is ready, so that the next
attempt need not wait until an interpreter has started and imported the app.

    STARTING ── hello ──▶ READY ── go ──▶ WORKING ── leave, stop ──▶ LEAVING ──▶ gone
                                             └──── its job does not stop: CONDEMNED ──▶ killed

A runner that is worn (it ran many jobs, takes much memory, has a thread that never stops) or of an older generation (SIGHUP)
is replaced: first another one starts to work, then the old one gets the message to leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

from ...core.clock import boottime, reader
from ...core.growing_pause import GrowingPause
from ...core.ids import new_id
from ...errors import StoreError
from ...observe import log
from ...observe.scaling_hint import Scale, scale
from ...storage.contract import Storage
from ..health.crash_evidence import ending
from ..health.probe import Condition, Probe
from ..host import host_of
from ..leases.status_board import Seen
from ..service import Service
from .lease_renewals import Renewals
from .loss_reports import Death, report
from .runner_process import Phase, RunnerProcess
from .team import Ended, Team

TICK, IDLE_TICK = 0.1, 0.5  # seconds between two checks; a death and a message wake the supervisor at once
FLUSH_WITHIN = 0.5  # seconds for a condemned runner to report what has ended
DUMP_WITHIN = 0.1  # seconds for it to write the stacks of its threads
STOP_MARGIN = 17.0  # seconds beyond its grace that a runner has at a stop: cancel handlers, report, remove its row
SILENT_AT_STOP = 5.0  # seconds without a pulse of its loop, after its grace, until a stopping runner is killed
BETWEEN_STARTS = 1.0  # seconds between two starts, once all have been started
LONGEST_PAUSE = 30.0  # between starts that fail
WEAR_CHECKED_EVERY = 1.0


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
        self._start_pause = GrowingPause(2.0, LONGEST_PAUSE, jitter=False)  # after starts that failed, in a row
        self._paused_until = 0.0
        self._wear_checked_at = 0.0
        self._stopping = asyncio.Event()
        self._kill_at = float("inf")
        self._ended: Ended | None = None  # why, if not because of a signal
        self._wake = asyncio.Event()
        self._opened: asyncio.Task[Storage] | None = None
        self._app: Any = None
        self._url: str | None = None
        self._worked = False  # a runner has started to work
        self._tasks: set[asyncio.Task[None]] = set()
        self._now = reader(None)

    async def run(self) -> Ended:
        loop = asyncio.get_running_loop()
        for number, handle in (
            (signal.SIGTERM, self._on_stop_signal),
            (signal.SIGINT, self._on_stop_signal),
            (signal.SIGHUP, self._on_reload_signal),
            (signal.SIGCHLD, self._wake.set),
        ):
            loop.add_signal_handler(number, handle)
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
        checked_at = boottime()
        while self._members or not self._stopping.is_set():
            checked_at = self._check_members(checked_at)
            try:
                async with asyncio.timeout(TICK if any(each.busy for each in self._members) else IDLE_TICK):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    # -- one check -----------------------------------------------------------------------------------
    def _check_members(self, before: float) -> float:
        now = boottime()
        for member in list(self._members):
            if (code := member.exit_code()) is not None:
                self._handle_exit(member, code)
            elif now - before > 1.0:
                member.forgive()
            else:
                self._watch(member, now)
        if self._stopping.is_set():
            self._kill_unresponsive(now)
        if not self._stopping.is_set():
            self._mark_worn(now)
            self._start_and_replace(now)
        return now

    def _kill_unresponsive(self, now: float) -> None:
        """At a stop a runner gets its grace and some time to report. A runner whose loop is blocked gets less."""
        for member in self._members:
            deaf = now - member.board.pulse > SILENT_AT_STOP and now >= self._kill_at - STOP_MARGIN + SILENT_AT_STOP
            if deaf or now >= self._kill_at:
                member.blameless, member.killed_because = True, "did not stop in time, and was killed"
                member.kill()

    def _watch(self, member: RunnerProcess, now: float) -> None:
        if member.phase not in (Phase.WORKING, Phase.LEAVING):
            return
        if not member.came_to_work and member.has_worked:
            self._note_work(member)
        if member.stopped_since is not None and member.has_lapsed_lease(now):
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
        """Stop its claims, let it report what it can, kill it. Its jobs are handed back when it is gone, not before."""
        jobs = ", ".join(sorted(hold.id for hold in overdue))
        log.runner_condemned(member.name, f"job {jobs} is over its timeout and does not stop")
        member.send("quiet")
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WITHIN):
                await member.flushed.wait()
        if member not in self._members:
            return
        if not overdue & {
            seen.hold for seen in member.board.seen()
        }:  # the job stopped after all; the runner is replaced anyway
            member.leave()
            return
        member.overdue = overdue
        member.killed_because = "was killed for that"
        member.tail.expect_dump()
        member.signal(signal.SIGUSR1)  # it writes the stacks of its threads
        await asyncio.sleep(DUMP_WITHIN)
        member.kill()

    # -- starting and replacing ----------------------------------------------------------------------
    def _start_and_replace(self, now: float) -> None:
        """Keep the wanted number at work and the spares ready. Runners to be replaced leave when others have started to
        work."""
        team = self._team
        fresh = [each for each in self._members if not self._is_stale(each)]
        working = [each for each in fresh if each.phase is Phase.WORKING]
        for member in [each for each in fresh if each.phase is Phase.READY][: team.processes - len(working)]:
            if self._runs_alone(member):
                return
            member.go()
            working.append(member)
        stale = [each for each in self._members if self._is_stale(each) and each.phase is Phase.WORKING]
        for member in stale[: max(0, len(working) + len(stale) - team.processes)]:
            member.leave()
        for member in self._members:
            if member.phase is Phase.READY and self._is_stale(member):
                member.stop()
        wanted = team.processes + (team.spares if len(working) >= team.processes else 0)
        for _ in range(wanted - len(fresh)):
            if not self._may_start(now):
                return
            self._start()

    def _is_stale(self, member: RunnerProcess) -> bool:
        leaving = member.phase in (Phase.LEAVING, Phase.CONDEMNED)
        return leaving or member.worn or member.generation < self._generation

    def _may_start(self, now: float) -> bool:
        """Start at most one a second once all have been started, and less often when starts fail."""
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

    def _runs_alone(self, member: RunnerProcess) -> bool:
        """Whether the store lives inside one process, as the hello says: such a store cannot be shared with a supervisor."""
        assert member.hello is not None
        if member.hello["alone"] is None:
            if self._url is None:
                self._url = member.hello["url"]
                self._spawn(self._open_early())
            return False
        self._ended = Ended(alone=member.hello["alone"])
        self._stop()
        return True

    def _mark_worn(self, now: float) -> None:
        """Mark runners that have done enough as worn, but not more at once than there are processes."""
        if now - self._wear_checked_at < WEAR_CHECKED_EVERY:
            return
        self._wear_checked_at = now
        leaving = sum(each.phase is Phase.LEAVING or each.worn for each in self._members)
        for member in self._members:
            if member.phase is Phase.WORKING and not member.worn and leaving < self._team.processes:
                if (why := self._why_worn(member)) is not None:
                    member.worn = True
                    leaving += 1
                    log.runner_leaves(member.name, why)

    def _why_worn(self, member: RunnerProcess) -> str | None:
        team, board = self._team, member.board
        if team.max_jobs is not None and board.confirmed >= team.max_jobs:
            return f"it has run {board.confirmed} jobs"
        if board.given_up:
            return "a thread runs on in it though its job is over"
        if team.max_memory is not None and (memory := member.memory()) > team.max_memory:
            return f"it occupies {memory / 1_048_576:.0f} MB"
        return None

    def _note_work(self, member: RunnerProcess) -> None:
        member.came_to_work = self._worked = True
        self._start_pause.reset()

    # -- ended runners -------------------------------------------------------------------------------
    def _handle_exit(self, member: RunnerProcess, code: int) -> None:
        self._members.remove(member)
        member.kill_group()
        self._wake.set()
        seen, claims = list(member.board.seen()), member.board.claims()
        message = f"runner {member.name} (pid {member.pid}) {member.killed_because or ending(code)}"
        if member.has_worked:
            self._note_work(member)
        if member.hello is None or (code > 0 and not member.has_worked):
            self._handle_failed_start(member, code)
        elif code or seen:
            log.runner_lost(message, len(seen))
        else:
            log.runner_left(member.name)
        self._spawn(self._report_loss(member, message, seen, claims))

    async def _report_loss(self, member: RunnerProcess, message: str, seen: list[Seen], claims: list[int]) -> None:
        if seen or claims or (member.open_transactions and member.process.returncode != 0):
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
                open_transactions=member.open_transactions,
            )
            await report(self._store, death, self._stopping)
        if member.process.returncode != 0 and member.hello is not None:
            try:
                await (await self._store()).remove_worker(member.name)
            except Exception as error:
                log.service_failed("goodbye of a runner", error)
        await member.link.close()

    def _handle_failed_start(self, member: RunnerProcess, code: int) -> None:
        """A runner ended before it worked. If it exited by itself, the app is broken: it cannot be imported, it has no
        tasks, an option or the URL is wrong. Then the supervisor ends too, unless a runner has worked before. A runner
        that was killed is started again."""
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
        """Start no runner for a while. The pause grows with each failure in a row."""
        self._paused_until = boottime() + (pause := self._start_pause.next())
        return pause

    # -- signals -------------------------------------------------------------------------------------
    def _on_stop_signal(self) -> None:
        if self._stopping.is_set():
            log.supervisor_reported(self._team.name, "is told to hurry")
            for member in self._members:
                member.send("hurry")
            self._kill_at = min(self._kill_at, boottime() + STOP_MARGIN)
        else:
            log.supervisor_reported(self._team.name, "received a signal to stop")
            self._stop()
        self._wake.set()

    def _stop(self) -> None:
        self._stopping.set()
        self._kill_at = boottime() + self._team.grace + STOP_MARGIN
        for member in self._members:
            if member.phase is not Phase.CONDEMNED:
                member.stop()
        self._wake.set()

    def _on_reload_signal(self) -> None:
        """New runners start; the old ones leave as the new ones start to work."""
        log.supervisor_reported(self._team.name, "reloads: new runners start, the old ones finish what runs")
        self._generation += 1
        self._starts = float(self._team.processes)
        self._paused_until = 0.0
        self._wake.set()

    # -- probes --------------------------------------------------------------------------------------
    def _probe(self) -> AbstractAsyncContextManager[Any]:
        async def scale_to(target: float) -> Scale:
            return await scale(await self._store(), target)

        return nullcontext() if self._team.probe is None else Probe(self.condition, scale=scale_to, **self._team.probe)

    def condition(self) -> Condition:
        """A supervisor is live while it answers, because it replaces broken runners itself. It is ready when a runner is."""
        at_work = [each for each in self._members if each.phase is Phase.WORKING]
        trouble = [f"{each.name}: {why}" for each in at_work if (why := each.trouble()) is not None]
        ready = len(trouble) < len(at_work) and not self._stopping.is_set()
        if self._stopping.is_set():
            trouble = ["it is stopping"]
        elif not ready and not trouble:
            trouble = ["no runner is at work"]
        facts = {
            "supervisor": self._team.name,
            "pid": os.getpid(),
            "runners": [each.summary() for each in self._members],
        }
        return Condition(live=True, ready=ready, why="; ".join(trouble) or None, facts=facts)

    # -- the rest ------------------------------------------------------------------------------------
    async def _store(self) -> Storage:
        """The supervisor's own store, opened by the first call."""
        if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
            self._opened = asyncio.create_task(self._open(), name="perdure open")
        return await asyncio.shield(self._opened)

    async def _open_early(self) -> None:
        """Open the store now, so that the first loss need not wait until a driver is imported."""
        try:
            await self._store()
        except Exception as error:
            log.store_out_of_reach("supervisor", error)

    async def _open(self) -> Storage:
        if self._url is None:
            raise StoreError("which store it is, is not known before a runner has come to work")
        if self._app is None:
            self._app = self._team.open_app(self._url)
        return await host_of(self._app).storage()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
