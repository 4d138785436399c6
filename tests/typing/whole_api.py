"""The rest of the public API, beside right.py: together they use every name. Read by type checkers, never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type
from uuid import UUID

from perdure import (
    AttemptError,
    Backoff,
    Context,
    DuplicateTask,
    Flow,
    Graph,
    HoldLost,
    IllegalMove,
    InvalidCall,
    Item,
    Job,
    JobCancelled,
    JobDead,
    JobHandle,
    JobNotSuccessful,
    JobSkipped,
    Loss,
    NoApp,
    NoContext,
    NoLoop,
    NotFound,
    Page,
    Perdure,
    PerdureError,
    QueueFull,
    QueueInfo,
    ResultTimeout,
    Retention,
    ScheduleInfo,
    State,
    StoreError,
    Thresholds,
    Transaction,
    Unique,
    UnknownParent,
    Worker,
    WorkerInfo,
    chain,
    graph,
    group,
)

app = Perdure(
    "sqlite:///jobs.db",
    outbox="sqlite:///outbox.db",
    thresholds=Thresholds(dead=1, workers=2),
    lease=timedelta(minutes=2),
    dead_retention=Retention.keep(age=timedelta(days=30)),
    unique=Unique(scope="active"),
)


@app.task(
    tags=["mail"], expires=60, max_attempts=5, timeout=None, priority=1, backoff=Backoff.exponential(1, maximum=60)
)
async def send(to: str) -> str:
    ctx = Context.current()
    assert_type(ctx.job, Job)
    assert_type(ctx.jobs, tuple[Job, ...])
    assert_type(ctx.worker, str)
    assert_type(ctx.tenant, str | None)
    assert_type(ctx.fence, str)
    assert_type(ctx.parents, tuple[Any, ...])
    assert_type(ctx.app, Perdure)
    if ctx.lost.is_set():
        assert_type(ctx.lost.reason, Loss | None)
    ctx.lost.check()
    tx = await ctx.transaction()
    assert_type(tx, Transaction)
    assert_type(await tx.execute("select :a", {"a": 1}), list[tuple[Any, ...]])
    assert_type(tx.sync.execute("select 1"), list[tuple[Any, ...]])
    await app.publish("sent", to, connection=tx.connection)
    return to


@app.batch_task(size=2)
async def collect(items: list[Item[str]]) -> None:
    first, *_ = items
    assert_type(first.args, str)
    assert_type(first.job, Job)
    await first.snooze(timedelta(minutes=1))
    await first.skip("not wanted")
    await first.dead("no such address")
    first.sync.retry(at=datetime.now(UTC), reason="later")


def job(seen: Job) -> None:
    assert_type(seen.id, UUID)
    assert_type((seen.task, seen.queue, seen.priority, seen.payload), tuple[str, str, int, str])
    assert_type((seen.attempt, seen.failures, seen.losses), tuple[int, int, int])
    assert_type((seen.result, seen.progress), tuple[Any, Any])
    assert_type(seen.errors, tuple[AttemptError, ...])
    assert_type(
        (seen.reason, seen.key, seen.tenant, seen.routing_key), tuple[str | None, str | None, str | None, str | None]
    )
    assert_type((seen.chain_id, seen.after), tuple[UUID, tuple[UUID, ...]])
    assert_type((seen.created_at, seen.run_at), tuple[datetime, datetime])
    assert_type(
        (seen.started_at, seen.finished_at, seen.expires_at), tuple[datetime | None, datetime | None, datetime | None]
    )
    assert_type((seen.leased_by, seen.leased_until, seen.timeout), tuple[str | None, datetime | None, float | None])
    assert_type((seen.max_attempts, seen.tags, seen.meta["request"]), tuple[int | None, tuple[str, ...], str])
    for error in seen.errors:
        assert_type((error.attempt, error.worker, error.kind, error.message), tuple[int, str, str, str])
        assert_type((error.started_at, error.ended_at, error.traceback), tuple[datetime, datetime, str | None])


def told(state: State, loss: Loss) -> str:
    assert_type(state.final, bool)
    match state:
        case State.BLOCKED | State.SCHEDULED | State.READY | State.RUNNING:
            return "not yet"
        case State.SUCCEEDED | State.SKIPPED | State.DEAD | State.CANCELLED:
            pass
    match loss:
        case Loss.TAKEN_BY_ANOTHER_WORKER | Loss.ALREADY_COMPLETED | Loss.NOT_FOUND:
            return "gone"
        case Loss.ERROR | Loss.CANCELLED | Loss.TIMEOUT | Loss.SHUTDOWN:
            return "stopped"


async def rooms(handle: JobHandle[str]) -> None:
    assert_type((handle.duplicate, handle.dropped), tuple[bool, bool])
    page = await app.jobs.find(
        tag="mail",
        tenant="acme",
        key="k",
        chain_id=handle.id,
        text="x",
        since=datetime.now(UTC),
        queue="q",
        cursor=None,
    )
    assert_type((page.items, page.cursor), tuple[tuple[Job, ...], str | None])
    assert_type(await app.jobs.run_now(handle, handle.id, str(handle.id), page.items[0]), int)
    assert_type(await app.dead.find(limit=5, task="send"), Page[Job])
    assert_type(await app.dead.retry(handle), int)
    assert_type(await app.dead.purge(cascade=True, before=datetime.now(UTC)), int)
    assert_type(app.dead.sync.export(Path("dead.jsonl")), int)
    await app.queues.pause("q")
    await app.queues.resume("q")
    for queue in app.queues.sync.list():
        assert_type(queue, QueueInfo)
        assert_type((queue.name, queue.paused, queue.depth), tuple[str, bool, int])
    for worker in await app.workers.list():
        assert_type(worker, WorkerInfo)
        assert_type((worker.id, worker.seen_at, worker.running), tuple[str, datetime, int])
    assert_type(app.workers.sync.list(), tuple[WorkerInfo, ...])
    for schedule in app.schedules.sync.list():
        assert_type(schedule, ScheduleInfo)
        assert_type((schedule.name, schedule.cron, schedule.task), tuple[str, str, str])
        assert_type(schedule.next_at, datetime | None)


async def life() -> None:
    await app.migrate()
    worker = app.worker(name="one", poll=timedelta(seconds=1), unknown="fail")
    assert_type(worker, Worker)
    assert_type(worker.id, str)
    await worker.start()
    await worker.run()
    flow: Flow[str] = chain(send.call("a"))
    together: Flow[list[str]] = group(send.using(dead_retention=Retention.delete(), at=datetime.now(UTC)).call("a"))
    several: Graph = graph()
    await app.enqueue(flow)
    await app.enqueue(together)
    await app.enqueue(several)
    await app.close()
    app.sync.signal("q")
    app.sync.migrate()


def errors() -> None:
    try:
        send.sync.run("a")
    except (UnknownParent, InvalidCall, QueueFull, NotFound, ResultTimeout, StoreError) as error:
        raise NoLoop("a") from error
    except (JobDead, JobCancelled, JobSkipped) as ended:
        assert_type(ended.job, Job)
        wider: JobNotSuccessful = ended
        raise wider from None
    except (DuplicateTask, NoContext, NoApp, IllegalMove, HoldLost):
        raise
    except PerdureError as other:
        assert_type(str(other), str)
