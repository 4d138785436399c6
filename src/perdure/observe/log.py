"""The wording of all log lines. Other code reports an event by calling a function here.

Values that come from users (payloads, messages, names) go through `safe`, so that no log line can be forged. A line about
an attempt also carries `job`, `task`, `attempt` and `worker` as fields of its log record.
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
from .log_format import plural, safe

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

logger = logging.getLogger("perdure")


def tasks_found(tasks: Sequence[str]) -> None:
    logger.info("tasks: %s", safe(", ".join(tasks)))


def runs_alone(why: str) -> None:
    logger.warning("%s: everything runs in this one process, without a supervisor", why)


def worker_started(worker: str, tasks: Sequence[str], concurrency: int, store: str) -> None:
    logger.info("worker %s started: %d slots on %s, tasks %s", worker, concurrency, store, safe(", ".join(tasks)))


def tasks_came_late(worker: str, tasks: Sequence[str]) -> None:
    logger.warning("worker %s does not run %s: declared after it started; restart it", worker, safe(", ".join(tasks)))


def unknown_tasks_wait(worker: str, tasks: Sequence[str]) -> None:
    logger.warning(
        "worker %s: jobs of tasks that no worker knows are waiting: %s; define or import them, or see `perdure jobs list`",
        worker, safe(", ".join(tasks)),
    )  # fmt: skip


def worker_stopping(worker: str, running: int, grace: float) -> None:
    within = f"at most {grace:.0f} s for them" if grace < float("inf") else "which may take their time"
    runs = f"{running} running, {within}" if running else "nothing runs in it"
    logger.info("worker %s is stopping: %s", worker, runs)


def worker_stopped(worker: str, ended: int) -> None:
    logger.info("worker %s stopped after %s", worker, plural(ended, "attempt"))


def supervisor_started(name: str, pid: int, processes: int, spares: int) -> None:
    logger.info(
        "supervisor %s (pid %d) keeps %s running and %d in reserve", name, pid, plural(processes, "runner"), spares
    )


def supervisor_reported(name: str, what: str) -> None:
    logger.info("supervisor %s %s", name, what)


def runner_started(name: str, pid: int) -> None:
    logger.info("runner %s started: pid %d", name, pid)


def runner_ready(name: str) -> None:
    logger.info("runner %s is ready", name)


def runner_left(name: str) -> None:
    logger.info("runner %s has ended", name)


def runner_lost(message: str, held: int) -> None:
    logger.error("%s; it held %s", message, plural(held, "job"))


def runner_leaves(name: str, why: str) -> None:
    logger.info("runner %s is replaced: %s; it finishes what runs", name, why)


def runner_condemned(name: str, why: str) -> None:
    logger.error("runner %s is killed: %s", name, why)


def runner_stopped_by_signal(name: str) -> None:
    logger.warning("runner %s was stopped by a signal; its leases are not renewed until it goes on", name)


def runner_not_started(name: str, message: str, again_in: float, *, others: bool) -> None:
    logger.log(
        logging.WARNING if others else logging.ERROR,
        "runner %s did not start: %s; the next start is in %.0f s at the earliest", name, message, again_in,
    )  # fmt: skip


def reload_failed(name: str) -> None:
    logger.error("supervisor %s: the new runners do not start; the old ones go on", name)


def orphaned(pid: int) -> None:
    logger.error("the supervisor of runner %d is gone: it claims nothing more, finishes what runs, and ends", pid)


def child_not_started(error: BaseException) -> None:
    logger.error("%s", safe(words_of(error)))


def brought_back(record: Record, change: Change, worker: str) -> None:
    fate = {State.READY: "is ready again", State.DEAD: f"is dead: {change.reason}"}.get(
        change.state or State.READY, "is retried"
    )
    loss = ", charged as a loss" if change.losses > record.losses else ""
    _job(logging.WARNING, record, "was in runner %s: it %s%s", safe(worker), safe(fate), loss)


def attempt_succeeded(record: Record, seconds: float) -> None:
    _attempt(logging.DEBUG, record, "succeeded in %.3f s", seconds)


def logs_successes() -> bool:
    """Whether lines about successes are wanted. There are many of them."""
    return logger.isEnabledFor(logging.DEBUG)


def attempt_failed(record: Record, kind: str, message: str, fate: str, raised: ExcInfo | None = None) -> None:
    _attempt(logging.WARNING, record, "failed: %s: %s; %s", safe(kind), safe(message), fate, raised=raised)


def end_broke(record: Record, error: BaseException) -> None:
    logger.error(
        "the end of job %s (%s) broke: %s", record.id, safe(record.task), _named(error),
        exc_info=error, extra=_fields(record),
    )  # fmt: skip


def retry_on_broke(task: str, error: Exception) -> None:
    logger.warning("retry_on of %s broke: %s; the attempt counts as worth a retry", safe(task), _named(error))


def result_does_not_fit(task: str, error: Exception) -> None:
    logger.warning("a result of %s is given as it was stored: %s", safe(task), safe(words_of(error)))


def job_died(record: Record, reason: str, kind: str, message: str, raised: ExcInfo | None = None) -> None:
    more = "" if message == reason else f"; last: {safe(kind)}: {safe(message)}"
    _job(logging.ERROR, record, "is dead: %s%s", safe(reason), more, raised=raised)


def hold_lost(record: Record, reason: Loss) -> None:
    _attempt(logging.WARNING, record, "lost its hold: %s", reason)


def report_refused(record: Record, reason: str) -> None:
    _attempt(logging.WARNING, record, "sent a report that the store refused: %s", reason)


def reaped(record: Record, charged: bool) -> None:
    if is_new(f"reaped {record.id} {record.leased_by} {charged}"):
        loss = ", charged as a loss" if charged else ""
        worker = safe(record.leased_by or "?")
        _job(logging.WARNING, record, "came back: the lease of worker %s ended%s", worker, loss)


def handler_goes_on(record: Record, seconds: float) -> None:
    words = "was told to stop %.0f s ago and its code still runs; it ends with its process, and the job goes back"
    _job(logging.ERROR, record, words, seconds)


def thread_given_up(record: Record) -> None:
    words = "ran over its timeout; its thread cannot be stopped from outside and goes on beside the next attempt"
    _job(logging.ERROR, record, words)


def loop_is_blocked(seconds: float, where: str, record: Record | None) -> None:
    job = "no job" if record is None else f"job {record.id} ({record.task})"
    logger.warning("the event loop has been blocked for %.1f s by %s, at %s", seconds, safe(job), safe(where))


def loop_blocked(seconds: float, names: Sequence[str]) -> None:
    logger.warning(
        "the event loop was blocked for %.1f s; on it: %s. Use `def` handlers or run blocking code in a thread",
        seconds, safe(", ".join(names) or "no job"),
    )  # fmt: skip


def store_out_of_reach(doing: str, error: BaseException) -> None:
    told = safe(words_of(error)).removesuffix(".")
    logger.warning("%s: %s: %s; it is tried again until it works", doing, type(error).__name__, told)


def store_not_opened(worker: str, error: BaseException, again_in: float) -> None:
    told = safe(words_of(error)).removesuffix(".")
    logger.error("worker %s: the store cannot be opened yet: %s; the next try is in %.0f s", worker, told, again_in)


def pull_not_stored(items: int, error: BaseException) -> None:
    logger.error(
        "app.claim: what became of %s could not be stored before the leases were over, the jobs come back: %s",
        plural(items, "item"), _named(error),
    )  # fmt: skip


def probe_listens(host: str, port: int) -> None:
    logger.info("probe: http://%s:%d/live, /ready and /scale", f"[{host}]" if ":" in host else host, port)


def probe_not_written(error: BaseException) -> None:
    logger.error("%s; it is tried again every second", safe(words_of(error)))


def claims_unanswered(seconds: float) -> None:
    logger.warning("no claim has been answered for %.0f s although there is room for jobs; it goes on trying", seconds)


def store_failed_handler(record: Record, error: BaseException) -> None:
    words = "was handed back, free of charge: the store failed under its handler: %s"
    _attempt(logging.WARNING, record, words, safe(words_of(error)))


def store_trouble_charged(record: Record) -> None:
    words = "counts as a failure: the store failed under this job again and again, and works for others"
    _attempt(logging.ERROR, record, words)


def end_not_stored(record: Record, error: BaseException) -> None:
    logger.error(
        "the end of job %s (%s) attempt %d cannot be stored, and waiting does not help; its lease ends and the job comes "
        "back: %s", record.id, safe(record.task), record.attempt, _named(error), extra=_fields(record),
    )  # fmt: skip


def claims_no_more() -> None:
    logger.warning("nothing is claimed until the store works for handlers again")


def claims_again() -> None:
    logger.info("the store works for handlers again; jobs are claimed")


def claims_answered_again() -> None:
    logger.info("claims are answered again")


def claim_loop_restarted(seconds: float) -> None:
    logger.error("no claim has been answered for %.0f s: the claim loop is restarted", seconds)


def connections_replaced() -> None:
    logger.error("claims stay unanswered: all connections to the store are given up and replaced by new ones")


def only_a_restart_helps(seconds: float) -> None:
    logger.critical(
        "no claim has been answered for %.0f s although the store was reached over new connections: only a restart of this "
        "process helps; /live says so", seconds,
    )  # fmt: skip


def loop_did_not_end(name: str, seconds: float) -> None:
    logger.error("%s did not end within %.0f s after it was cancelled; it is left behind", name, seconds)


def change_not_stored(record: Record, error: BaseException) -> None:
    _job(logging.ERROR, record, "has ended, and its end could not be stored: %s", safe(words_of(error)))


def attempt_orphaned(record: Record) -> None:
    words = "was held, and nothing worked on it; it is handed back. Please report this bug"
    _attempt(logging.ERROR, record, words)


def service_failed(name: str, error: BaseException) -> None:
    logger.error("%s failed: %s", name, _named(error), exc_info=error)


def worker_not_started(worker: str, error: BaseException) -> None:
    logger.error("worker %s did not start, the others of its pool go on without it: %s", worker, _named(error))


def clock_jumped(seconds: float) -> None:
    logger.warning("the store's clock moved by %+.1f s against this machine's; reaping waits", seconds)


def caller_is_careless(setting: str, when: str, remedy: str) -> None:
    logger.warning(
        "a connection given as connection= has %s: jobs that it commits may be lost when %s; %s if they must not be",
        setting, when, remedy,
    )  # fmt: skip


def caller_waits_for_no_majority() -> None:
    logger.warning(
        "a session given as connection= does not wait for the journals of a majority when it commits: jobs that it commits "
        "may be lost in a failover; start its transaction with WriteConcern('majority', j=True) if they must not be"
    )


def outbox_not_ready(error: BaseException) -> None:
    words = "the outbox is not ready: %s; jobs enqueued with connection= need it, everything else goes on"
    logger.warning(words, safe(words_of(error)) or type(error).__name__)


def relay_out_of_reach(error: BaseException) -> None:
    trace = None if isinstance(error, PerdureError | OSError) else error
    logger.warning("relay: %s; it tries again until it works", _named(error), exc_info=trace)


def relay_works_again(seconds: float) -> None:
    logger.info("relay: works again after %.1f s", seconds)


def relay_found_full(queues: Sequence[str]) -> None:
    logger.warning("relay: full at the store, their jobs wait in the outbox: %s", safe(", ".join(queues)))


def set_aside(number: int, why: str) -> None:
    words = "relay: row %d of the outbox was set aside: %s; `perdure relay --retry` tries it again"
    logger.error(words, number, safe(why))


def upkeep_failed(step: str, error: BaseException, again_in: float) -> None:
    line = f"upkeep: {step} failed: {type(error).__name__}: {words_of(error)}"
    if is_new(line):
        logger.error("%s; the other steps go on, it is tried again in %.0f s", safe(line), again_in, exc_info=error)


def schedule_broken(name: str, error: BaseException) -> None:
    if is_new(f"schedule {name} {type(error).__name__} {error}"):
        logger.error("schedule %s cannot fire here: %s", safe(name), _named(error))


def text_unreadable(kind: str, name: str, error: BaseException) -> None:
    if is_new(f"{kind} {name} {type(error).__name__} {error}"):
        logger.error("%s %s cannot be read and is passed over: %s", kind, safe(name), safe(words_of(error)))


def schedule_orphaned(name: str, task: str) -> None:
    logger.warning(
        "schedule %s (%s) was declared in code that is gone: it stays on record and does not fire; remove it with "
        "`perdure schedules remove`, or declare it again",
        safe(name), safe(task),
    )  # fmt: skip


def schedules_found_full(names: Sequence[str], queue: str) -> None:
    logger.warning("queue %s is full, ticks wait for room: %s", safe(queue), safe(", ".join(names)))


def ticks_ahead(names: Sequence[str]) -> None:
    logger.error(
        "the last ticks of these schedules are more than an hour ahead of the store's clock: %s. It went back; they fire "
        "when it is past those ticks again, or from now on after `perdure schedules pause` and `resume`",
        safe(", ".join(names)),
    )


def purge_refused(number: int, example: str) -> None:
    logger.warning(
        "%s not deleted, because jobs wait for them, such as for %s; cascade=True (--cascade) deletes those jobs too",
        "1 dead letter was" if number == 1 else f"{number} dead letters were", example,
    )  # fmt: skip


def step_is_plain(name: str, error: BaseException) -> None:
    logger.warning(
        "the result of step %r is given as plain JSON, because the annotation of its function cannot be resolved: %s",
        name, error,
    )  # fmt: skip


def line_of_handler(record: Record, line: str) -> None:
    logger.info("job %s (%s): %s", record.id, safe(record.task), safe(line), extra=_fields(record))


def _job(level: int, record: Record, words: str, *values: object, raised: ExcInfo | None = None) -> None:
    """A line that begins with the job."""
    values = (record.id, safe(record.task), *values)
    logger.log(level, "job %s (%s) " + words, *values, extra=_fields(record), exc_info=raised)


def _attempt(level: int, record: Record, words: str, *values: object, raised: ExcInfo | None = None) -> None:
    """A line that begins with the job and the number of its attempt."""
    _job(level, record, "attempt %d " + words, record.attempt, *values, raised=raised)


def _named(error: BaseException) -> str:
    """An error with its kind."""
    return f"{type(error).__name__}: {safe(words_of(error))}"


def _fields(record: Record) -> dict[str, object]:
    """Fields of the log record, for programs that read logs."""
    return {"job": record.id, "task": record.task, "attempt": record.attempt, "worker": record.leased_by}
