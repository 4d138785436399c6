"""All log wording. Code states facts by calling these; how they read is decided here.

Values that come from users (payloads, messages, names) go through `_safe`, so that no log line can be forged. A line about
an attempt also carries `job`, `task`, `attempt` and `worker` as fields of its record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType

from ..core.job import Loss, State
from ..core.lifecycle import Change
from ..core.log_limit import is_new
from ..core.record import Record
from ..errors import PerdureError, words_of
from .log_format import printable

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

logger = logging.getLogger("perdure")


def tasks_found(tasks: Sequence[str]) -> None:
    logger.info("tasks: %s", _safe(", ".join(tasks)))


def runs_alone(why: str) -> None:
    logger.warning("%s: everything runs in this one process, without a supervisor", why)


def worker_started(worker: str, tasks: Sequence[str], concurrency: int, store: str) -> None:
    logger.info("worker %s started: %d slots on %s, tasks %s", worker, concurrency, store, _safe(", ".join(tasks)))


def tasks_came_late(worker: str, tasks: Sequence[str]) -> None:
    logger.warning(
        "worker %s does not run %s: declared after it started; start it anew", worker, _safe(", ".join(tasks))
    )


def unknown_tasks_wait(worker: str, tasks: Sequence[str]) -> None:
    logger.warning(
        "worker %s: jobs of tasks that no worker knows are waiting: %s; define or import them, or see `perdure jobs list`",
        worker, _safe(", ".join(tasks)),
    )  # fmt: skip


def worker_stopping(worker: str, running: int, grace: float) -> None:
    within = f"at most {grace:.0f} s for them" if grace < float("inf") else "which may take their time"
    runs = f"{running} running, {within}" if running else "nothing runs in it"
    logger.info("worker %s is stopping: %s", worker, runs)


def worker_stopped(worker: str, ended: int) -> None:
    logger.info("worker %s stopped after %s", worker, _many(ended, "attempt"))


def supervisor_started(name: str, pid: int, processes: int, spares: int) -> None:
    logger.info(
        "supervisor %s (pid %d) keeps %s at work, %d ready beside", name, pid, _many(processes, "runner"), spares
    )


def supervisor_told(name: str, what: str) -> None:
    logger.info("supervisor %s %s", name, what)


def runner_started(name: str, pid: int) -> None:
    logger.info("runner %s started: pid %d", name, pid)


def runner_ready(name: str) -> None:
    logger.info("runner %s stands ready", name)


def runner_left(name: str) -> None:
    logger.info("runner %s has ended", name)


def runner_lost(message: str, held: int) -> None:
    logger.error("%s; it held %s", message, _many(held, "job"))


def runner_leaves(name: str, why: str) -> None:
    logger.info("runner %s is replaced: %s; it finishes what runs", name, why)


def runner_condemned(name: str, why: str) -> None:
    logger.error("runner %s is killed: %s", name, why)


def runner_stopped_by_signal(name: str) -> None:
    logger.warning("runner %s was stopped by a signal; its leases are not renewed until it goes on", name)


def runner_not_started(name: str, message: str, again_in: float, *, others: bool) -> None:
    logger.log(
        logging.WARNING if others else logging.ERROR,
        "runner %s did not come to work: %s; the next start is in %.0f s at the earliest", name, message, again_in,
    )  # fmt: skip


def reload_failed(name: str) -> None:
    logger.error("supervisor %s: the new runners do not start; the old ones go on", name)


def orphaned(pid: int) -> None:
    logger.error("the supervisor of runner %d is gone: it claims nothing more, finishes what runs, and ends", pid)


def child_not_started(error: BaseException) -> None:
    logger.error("%s", _safe(words_of(error)))


def brought_back(record: Record, change: Change, worker: str) -> None:
    fate = {State.READY: "is ready again", State.DEAD: f"is dead: {change.reason}"}.get(
        change.state or State.READY, "is retried"
    )
    logger.warning(
        "job %s (%s) was in runner %s: it %s%s", record.id, _safe(record.task), _safe(worker), _safe(fate),
        ", charged as a loss" if change.losses > record.losses else "",
        extra=_fields(record),
    )  # fmt: skip


def attempt_succeeded(record: Record, seconds: float) -> None:
    logger.debug(
        "job %s (%s) attempt %d succeeded in %.3f s", record.id, _safe(record.task), record.attempt, seconds,
        extra=_fields(record),
    )  # fmt: skip


def tells_successes() -> bool:
    """Whether anybody wants to read of them: they are many."""
    return logger.isEnabledFor(logging.DEBUG)


def attempt_failed(record: Record, kind: str, message: str, fate: str, raised: ExcInfo | None = None) -> None:
    logger.warning(
        "job %s (%s) attempt %d failed: %s: %s; %s",
        record.id, _safe(record.task), record.attempt, _safe(kind), _safe(message), fate,
        extra=_fields(record), exc_info=raised,
    )  # fmt: skip


def end_broke(record: Record, error: BaseException) -> None:
    broke = f"{type(error).__name__}: {words_of(error)}"
    logger.error(
        "the end of job %s (%s) broke: %s",
        record.id,
        _safe(record.task),
        _safe(broke),
        exc_info=error,
        extra=_fields(record),
    )


def retry_on_broke(task: str, error: Exception) -> None:
    broke = f"{type(error).__name__}: {words_of(error)}"
    logger.warning("retry_on of %s broke: %s; the attempt counts as worth a retry", _safe(task), _safe(broke))


def result_does_not_fit(task: str, error: Exception) -> None:
    logger.warning("a result of %s is given as it was stored: %s", _safe(task), _safe(words_of(error)))


def job_died(record: Record, reason: str, kind: str, message: str, raised: ExcInfo | None = None) -> None:
    more = "" if message == reason else f"; last: {_safe(kind)}: {_safe(message)}"
    logger.error(
        "job %s (%s) is dead: %s%s", record.id, _safe(record.task), _safe(reason), more,
        extra=_fields(record), exc_info=raised,
    )  # fmt: skip


def hold_lost(record: Record, reason: Loss) -> None:
    logger.warning(
        "job %s (%s) attempt %d lost its hold: %s",
        record.id,
        _safe(record.task),
        record.attempt,
        reason,
        extra=_fields(record),
    )


def word_refused(record: Record, reason: str) -> None:
    logger.warning(
        "what attempt %d of job %s (%s) said was refused: %s",
        record.attempt,
        record.id,
        _safe(record.task),
        reason,
        extra=_fields(record),
    )


def reaped(record: Record, charged: bool) -> None:
    if not is_new(f"reaped {record.id} {record.leased_by} {charged}"):
        return
    logger.warning(
        "job %s (%s) came back: the lease of worker %s ended%s",
        record.id, _safe(record.task), _safe(record.leased_by or "?"), ", charged as a loss" if charged else "",
        extra=_fields(record),
    )  # fmt: skip


def handler_goes_on(record: Record, seconds: float) -> None:
    logger.error(
        "job %s (%s) was told to stop %.0f s ago and its code still runs; it ends with its process, and the job goes back",
        record.id, _safe(record.task), seconds,
        extra=_fields(record),
    )  # fmt: skip


def thread_given_up(record: Record) -> None:
    logger.error(
        "job %s (%s) ran over its timeout; its thread cannot be stopped from outside and goes on beside the next attempt",
        record.id, _safe(record.task),
        extra=_fields(record),
    )  # fmt: skip


def loop_is_blocked(seconds: float, where: str, record: Record | None) -> None:
    job = "no job" if record is None else f"job {record.id} ({record.task})"
    logger.warning("the event loop has been blocked for %.1f s by %s, at %s", seconds, _safe(job), _safe(where))


def loop_blocked(seconds: float, names: Sequence[str]) -> None:
    logger.warning(
        "the event loop was blocked for %.1f s; on it: %s. Use `def` handlers or run blocking code in a thread",
        seconds, _safe(", ".join(names) or "no job"),
    )  # fmt: skip


def store_out_of_reach(doing: str, error: BaseException) -> None:
    told = _safe(words_of(error)).removesuffix(".")
    logger.warning("%s: %s: %s; it is tried again until it works", doing, type(error).__name__, told)


def store_not_opened(worker: str, error: BaseException, again_in: float) -> None:
    told = _safe(words_of(error)).removesuffix(".")
    logger.error("worker %s: the store cannot be opened yet: %s; the next try is in %.0f s", worker, told, again_in)


def pull_not_stored(items: int, error: BaseException) -> None:
    logger.error(
        "app.claim: what became of %s could not be stored before the leases were over, the jobs come back: %s: %s",
        _many(items, "item"), type(error).__name__, _safe(words_of(error)),
    )  # fmt: skip


def probe_listens(host: str, port: int) -> None:
    logger.info("probe: http://%s:%d/live, /ready and /scale", f"[{host}]" if ":" in host else host, port)


def probe_not_written(error: BaseException) -> None:
    logger.error("%s; it is tried again every second", _safe(words_of(error)))


def claims_unanswered(seconds: float) -> None:
    logger.warning("no claim has been answered for %.0f s although there is room for jobs; trying on", seconds)


def store_failed_handler(record: Record, error: BaseException) -> None:
    logger.warning(
        "job %s (%s) attempt %d was handed back, free of charge: the store failed under its handler: %s",
        record.id, _safe(record.task), record.attempt, _safe(words_of(error)),
    )  # fmt: skip


def store_trouble_charged(record: Record) -> None:
    logger.error(
        "job %s (%s) attempt %d counts as a failure: the store failed under this job again and again, and works for others",
        record.id, _safe(record.task), record.attempt,
    )  # fmt: skip


def end_not_stored(record: Record, error: BaseException) -> None:
    logger.error(
        "the end of job %s (%s) attempt %d cannot be stored, and waiting does not help; its lease ends and the job comes "
        "back: %s: %s", record.id, _safe(record.task), record.attempt, type(error).__name__, _safe(words_of(error)),
    )  # fmt: skip


def claims_no_more() -> None:
    logger.warning("nothing is claimed until the store works for handlers again")


def claims_again() -> None:
    logger.info("the store works for handlers again; jobs are claimed")


def claims_answered_again() -> None:
    logger.info("claims are answered again")


def pump_started_anew(seconds: float) -> None:
    logger.error("no claim has been answered for %.0f s: the pump is started anew", seconds)


def connections_replaced() -> None:
    logger.error("claims stay unanswered: all connections to the store are given up and replaced by new ones")


def only_a_restart_helps(seconds: float) -> None:
    logger.critical(
        "no claim has been answered for %.0f s although the store was reached over new connections: only a restart of this "
        "process helps; /live says so",
        seconds,
    )


def loop_did_not_end(name: str, seconds: float) -> None:
    logger.error("%s did not end within %.0f s after it was cancelled; it is left behind", name, seconds)


def change_not_stored(record: Record, error: BaseException) -> None:
    logger.error(
        "job %s (%s): its end could not be stored: %s",
        record.id,
        _safe(record.task),
        _safe(words_of(error)),
        extra=_fields(record),
    )


def attempt_orphaned(record: Record) -> None:
    logger.error(
        "job %s (%s) attempt %d was held, and nothing worked on it; it is handed back. Please report this bug",
        record.id, _safe(record.task), record.attempt,
        extra=_fields(record),
    )  # fmt: skip


def service_failed(name: str, error: BaseException) -> None:
    logger.error("%s failed: %s: %s", name, type(error).__name__, _safe(words_of(error)), exc_info=error)


def worker_not_started(worker: str, error: BaseException) -> None:
    logger.error(
        "worker %s did not start, the others of its pool go on without it: %s: %s",
        worker, type(error).__name__, _safe(words_of(error)),
    )  # fmt: skip


def clock_jumped(seconds: float) -> None:
    logger.warning("the store's clock moved by %+.1f s against this machine's; reaping waits", seconds)


def caller_is_careless(setting: str, when: str, remedy: str) -> None:
    logger.warning(
        "a connection given as connection= has %s: jobs that it commits may be lost when %s; %s if they must not be",
        setting,
        when,
        remedy,
    )


def caller_waits_for_no_majority() -> None:
    logger.warning(
        "a session given as connection= does not wait for the journals of a majority when it commits: jobs that it commits "
        "may be lost in a failover; start its transaction with WriteConcern('majority', j=True) if they must not be"
    )


def outbox_not_ready(error: BaseException) -> None:
    logger.warning(
        "the outbox is not ready: %s; jobs enqueued with connection= need it, everything else goes on",
        _safe(words_of(error)) or type(error).__name__,
    )


def relay_out_of_reach(error: BaseException) -> None:
    trace = None if isinstance(error, PerdureError | OSError) else error
    logger.warning(
        "relay: %s: %s; it tries again until it works", type(error).__name__, _safe(words_of(error)), exc_info=trace
    )


def relay_works_again(seconds: float) -> None:
    logger.info("relay: works again after %.1f s", seconds)


def relay_found_full(queues: Sequence[str]) -> None:
    logger.warning("relay: full at the store, their jobs wait in the outbox: %s", _safe(", ".join(queues)))


def set_aside(number: int, why: str) -> None:
    logger.error(
        "relay: row %d of the outbox was set aside: %s; `perdure relay --retry` tries it again", number, _safe(why)
    )


def upkeep_failed(step: str, error: BaseException, again_in: float) -> None:
    line = f"upkeep: {step} failed: {type(error).__name__}: {words_of(error)}"
    if is_new(line):
        logger.error("%s; the other steps go on, it is tried again in %.0f s", _safe(line), again_in, exc_info=error)


def schedule_broken(name: str, error: BaseException) -> None:
    if not is_new(f"schedule {name} {type(error).__name__} {error}"):
        return
    logger.error("schedule %s cannot fire here: %s: %s", _safe(name), type(error).__name__, _safe(words_of(error)))


def text_unreadable(kind: str, name: str, error: BaseException) -> None:
    if is_new(f"{kind} {name} {type(error).__name__} {error}"):
        logger.error("%s %s cannot be read and is passed over: %s", kind, _safe(name), _safe(words_of(error)))


def schedule_orphaned(name: str, task: str) -> None:
    logger.warning(
        "schedule %s (%s) was declared in code that is gone: it stays on record and does not fire; remove it with "
        "`perdure schedules remove`, or declare it again",
        _safe(name), _safe(task),
    )  # fmt: skip


def schedules_found_full(names: Sequence[str], queue: str) -> None:
    logger.warning("queue %s is full, ticks wait for room: %s", _safe(queue), _safe(", ".join(names)))


def ticks_ahead(names: Sequence[str]) -> None:
    logger.error(
        "the last ticks of these schedules are more than an hour ahead of the store's clock: %s. It went back; they fire "
        "when it is past those ticks again, or from now on after `perdure schedules pause` and `resume`",
        _safe(", ".join(names)),
    )


def purge_refused(number: int, example: str) -> None:
    logger.warning(
        "%s not deleted, because jobs wait for them, such as for %s; cascade=True (--cascade) deletes those jobs too",
        "1 dead letter was" if number == 1 else f"{number} dead letters were",
        example,
    )


def step_is_plain(name: str, error: BaseException) -> None:
    logger.warning(
        "the result of step %r is given as plain JSON, because the annotation of its function cannot be resolved: %s",
        name,
        error,
    )


def said_by_handler(record: Record, line: str) -> None:
    logger.info("job %s (%s): %s", record.id, _safe(record.task), _safe(line), extra=_fields(record))


def _fields(record: Record) -> dict[str, object]:
    """What a line about an attempt carries for programs that read logs, beside its words."""
    return {"job": record.id, "task": record.task, "attempt": record.attempt, "worker": record.leased_by}


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _safe(text: str) -> str:
    shown = text if len(text) <= 500 else text[:500] + "…"
    return printable(shown)
