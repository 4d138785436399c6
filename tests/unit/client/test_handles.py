"""Handles, and the rooms jobs, dead, queues and workers."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from perdure import (
    ANY,
    Context,
    Dead,
    InvalidCall,
    JobCancelled,
    JobDead,
    JobSkipped,
    NotFound,
    Perdure,
    ResultTimeout,
    Retention,
    Skip,
    State,
    StoreError,
    Unique,
)
from perdure.client.transitions import transition
from perdure.core.lifecycle import Cancelled
from perdure.storage.contract import REFUSED, Refusal
from perdure.testing import ManualClock, drain
from tests.support.waiting import eventually


@pytest.fixture
def app():
    return Perdure("memory://", max_attempts=1)


@pytest.fixture
def task(app):
    @app.task
    async def task(ctx: Context, word: str = "") -> datetime | None:
        match word:
            case "skip":
                raise Skip("nothing to do")
            case "dead":
                raise Dead("bad address")
            case "fail":
                raise ValueError("oh no")
            case "log":
                await ctx.log("one")
                await ctx.log("two")
            case "progress":
                await ctx.progress({"percent": 40})
            case "hang":
                await asyncio.sleep(60)
        return datetime(2026, 1, 1, tzinfo=UTC)

    return task


# ---- result ----------------------------------------------------------------------------------------
async def test_a_result_has_the_type_of_the_annotation(app, task):
    async with app.worker():
        assert await (await task.enqueue()).result(timeout=30) == datetime(2026, 1, 1, tzinfo=UTC)
        job = await task.enqueue()
        assert await task.handle(str(job.id)).result(timeout=30) == datetime(2026, 1, 1, tzinfo=UTC)
        assert isinstance(job.id, UUID)


async def test_jobs_can_be_put_into_a_set(app, task):
    job = await task.using(meta={"request": "1"}).enqueue()
    assert len({await job.refresh(), await job.refresh(), await (await task.enqueue()).refresh()}) == 2


async def test_a_job_that_ended_otherwise_raises(app, task):
    async with app.worker():
        with pytest.raises(JobSkipped, match="nothing to do") as skipped:
            await (await task.enqueue("skip")).result(timeout=30)
        assert skipped.value.job.state is State.SKIPPED
        with pytest.raises(JobDead, match=r"is dead: bad address$"):
            await (await task.enqueue("dead")).result(timeout=30)
        with pytest.raises(JobDead) as dead:
            await (await task.enqueue("fail")).result(timeout=30)
        assert dead.value.job.errors[-1].message == "oh no"
    job = await task.enqueue()
    assert await job.cancel()
    with pytest.raises(JobCancelled):
        await job.result()
    assert not await job.cancel()


async def test_a_result_that_does_not_fit_the_annotation_is_given_as_it_was_stored(app, caplog):
    """The job has succeeded: there is nothing that its caller could mend."""

    @app.task
    async def count(words: str) -> int:
        return words.split()

    @app.task
    async def add(ctx: Context) -> list[object]:
        return list(ctx.parents)

    async with app.worker():
        job = await count.enqueue("to be")
        assert await job.result(timeout=30) == ["to", "be"]
        assert await (await add.using(after=[job]).enqueue()).result(timeout=30) == [["to", "be"]]
    assert (
        "a result of count is given as it was stored: count: the result does not fit its annotation int" in caplog.text
    )
    later = await count.using(delay=60).enqueue("")
    with pytest.raises(InvalidCall, match="does not fit its annotation"):
        await app.jobs.complete(later, "two")


async def test_a_result_that_does_not_come_in_time(task):
    job = await task.enqueue()
    with pytest.raises(ResultTimeout, match="is ready after"):
        await job.result(timeout=0.02)
    with pytest.raises(ResultTimeout):
        await job.result(timeout=timedelta(0))
    for wrong in (-1, "5", float("nan")):
        with pytest.raises(InvalidCall, match="timeout"):
            await job.result(timeout=wrong)


async def test_a_job_that_is_gone(app, task):
    unknown = task.handle(uuid4())
    for verb in (unknown.result, unknown.refresh):
        with pytest.raises(NotFound):
            await verb()
    assert not await unknown.cancel()
    job = await task.enqueue()
    assert await app.jobs.delete(job) == 1
    for verb in (job.result, job.refresh):
        with pytest.raises(NotFound):
            await verb()
    for wrong in ("x", 5, None):
        with pytest.raises(InvalidCall):
            task.handle(wrong)


async def test_a_result_deleted_on_success_can_still_be_had(app, task):
    async with app.worker():
        job = await task.using(retention=Retention.delete()).enqueue()
        assert await job.result(timeout=30)
        assert await job.result(timeout=30)
    with pytest.raises(NotFound):
        await job.refresh()
    assert await app.jobs.get(job.id) is None


async def test_who_waits_hears_how_a_job_ended_whose_retention_deletes_it(app, task):
    gone = task.using(retention=Retention.delete(), dead_retention=Retention.delete())
    async with app.worker():
        dead = await gone.enqueue("dead")
        with pytest.raises(JobDead, match="bad address"):
            await dead.result(timeout=30)
    cancelled = await gone.enqueue()
    assert await cancelled.cancel()
    with pytest.raises(JobCancelled):
        await cancelled.result(timeout=30)
    for job in (dead, cancelled):
        assert await app.jobs.get(job.id) is None
        assert await app.jobs.delete(job) == 0


async def test_a_job_that_is_kept_no_more_is_hidden_before_it_is_removed():
    """Who waits late hears how it ended, as of one that its retention deletes; then it is gone."""
    clock = ManualClock()
    app = Perdure("memory://", max_attempts=1, clock=clock)

    @app.task
    async def work(word: str) -> str:
        if word == "dead":
            raise Dead("bad address")
        return word

    brief = work.using(retention=Retention.keep(last=0), dead_retention=Retention.keep(age=1))
    done, dead = await brief.enqueue("done"), await brief.enqueue("dead")
    await drain(app)
    clock.advance(1)
    await drain(app)
    assert await app.jobs.count() == await app.dead.retry(dead.id) == await app.jobs.delete(done) == 0
    assert await app.jobs.get(done.id) is None
    assert await done.result(timeout=30) == "done"
    with pytest.raises(JobDead, match="bad address"):
        await dead.result(timeout=30)
    clock.advance(599)
    await drain(app)
    for job in (done, dead):
        with pytest.raises(NotFound):
            await job.result(timeout=30)


async def test_a_job_that_somebody_deleted_is_not_found(app, task):
    forgotten = task.using(retention=Retention.delete())
    async with app.worker():
        dead = await forgotten.enqueue("dead")
        with pytest.raises(JobDead):
            await dead.result(timeout=30)
    cancelled, waiting = await task.enqueue(), await forgotten.using(delay=60).enqueue()
    await cancelled.cancel()
    assert await app.jobs.delete(dead, cancelled, waiting) == 3
    for job in (dead, cancelled, waiting):
        with pytest.raises(
            NotFound, match="is not on record: deleted, pruned, enqueued in a transaction that has not committed"
        ):
            await job.result(timeout=30)


async def test_a_job_that_has_ended_is_told_without_waiting(app, task):
    async with app.worker():
        job = await task.enqueue()
        await job.result(timeout=30)
    assert await job.result(timeout=0)
    assert [seen.state async for seen in job.watch(timeout=0)] == [State.SUCCEEDED]
    waiting = await task.enqueue()
    with pytest.raises(ResultTimeout, match="is ready after 0 s"):
        await waiting.result(timeout=0)


async def test_who_waits_while_the_app_is_closed_is_told(app, task):
    job = await task.enqueue()
    waiting = asyncio.create_task(job.result())
    async for _ in job.watch():
        break
    await app.close()
    with pytest.raises(StoreError, match="the app was closed while job"):
        await asyncio.wait_for(waiting, 20)
    assert await app.jobs.count() == 1


async def test_many_wait_with_few_looks(app, task):
    storage = await app._runtime.storage()
    looks = 0
    get = storage.get

    async def counted(ids):
        nonlocal looks
        looks += 1
        return await get(ids)

    storage.get = counted
    jobs = await app.enqueue([task.call() for _ in range(300)])
    async with app.worker():
        await asyncio.gather(*(job.result(timeout=10) for job in jobs))
    assert looks < 15


async def test_a_store_that_fails_is_told_to_who_waits(app, task):
    job = await task.enqueue()
    storage = await app._runtime.storage()

    get, asked = storage.get, asyncio.Event()

    async def noted(ids):
        asked.set()
        return await get(ids)

    async def broken(ids):
        raise OSError("cut")

    storage.get = noted
    waiting = asyncio.create_task(job.result())
    await asked.wait()
    storage.get = broken
    with pytest.raises(StoreError, match="cut"):
        await waiting


async def test_a_store_that_comes_back_is_waited_for(app, task):
    job = await task.enqueue()
    storage = await app._runtime.storage()
    get, cuts = storage.get, 0

    async def cut_twice(ids):
        nonlocal cuts
        cuts += 1
        if cuts < 3:
            raise ConnectionResetError("cut")
        return await get(ids)

    storage.get = cut_twice
    waiting = asyncio.create_task(job.result(timeout=10))
    while cuts < 2:
        await asyncio.sleep(0.01)
    await job.cancel()
    with pytest.raises(JobCancelled):
        await waiting


# ---- watch -----------------------------------------------------------------------------------------
async def test_watch_shows_each_change_and_ends(app, task):
    job = await task.enqueue("progress")
    seen = []

    async def watch():
        async for each in job.watch(timeout=60):
            seen.append((each.state, each.progress))

    watching = asyncio.create_task(watch())
    await eventually(lambda: seen)
    async with app.worker():
        await watching
    assert seen[0] == (State.READY, None)
    assert seen[-1] == (State.SUCCEEDED, {"percent": 40})
    with pytest.raises(ResultTimeout):
        async for _ in (await task.enqueue()).watch(timeout=0.02):
            pass


# ---- jobs ------------------------------------------------------------------------------------------
async def test_find_by_everything(app, task):
    started = datetime.now(UTC)
    one = await task.using(queue="q", tenant="acme/main", key="k", tags=["x"], routing_key="r").enqueue("needle")
    await task.enqueue("hay")

    async def ids(**filter):
        page = await app.jobs.find(**filter)
        assert await app.jobs.count(**filter) == len(page.items)
        return [job.id for job in page.items]

    for filter in (
        dict(queue="q"),
        dict(tenant="acme"),
        dict(tenant="acme/main"),
        dict(key="k"),
        dict(tag="x"),
        dict(routing_key="r"),
        dict(text="NEEDLE"),
        dict(chain_id=one.id),
        dict(chain_id=str(one.id)),
        dict(queue="q", state=State.READY),
        dict(queue="q", state=[State.READY, "scheduled"]),
    ):
        assert await ids(**filter) == [one.id], filter
    for filter in (dict(tenant="ac"), dict(state=State.DEAD), dict(task="other"), dict(before=started - timedelta(1))):
        assert await ids(**filter) == [], filter
    assert len(await ids(routing_key=ANY)) == 2
    assert len(await ids(routing_key=None)) == 1
    assert len(await ids(since=started - timedelta(1))) == 2


async def test_find_page_by_page(app, task):
    await app.enqueue([task.call() for _ in range(7)])
    seen, cursor = [], None
    while True:
        page = await app.jobs.find(limit=3, cursor=cursor)
        seen += [job.id for job in page.items]
        if (cursor := page.cursor) is None:
            break
    assert len(seen) == len(set(seen)) == 7
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(
    "filter",
    [
        dict(state="sleeping"),
        dict(state=5),
        dict(task=""),
        dict(queue=5),
        dict(tag="a\nb"),
        dict(key=""),
        dict(text=""),
        dict(text=5),
        dict(text="\ud800"),
        dict(chain_id="x"),
        dict(since=datetime(2026, 1, 1)),
        dict(before="now"),
        dict(routing_key=5),
        dict(colour="red"),
        dict(limit=0),
        dict(limit=-1),
        dict(limit=True),
        dict(limit="5"),
        dict(cursor="garbage"),
        dict(cursor=5),
    ],
    ids=str,
)
async def test_bad_filters_are_refused(app, filter):
    with pytest.raises(InvalidCall):
        await app.jobs.find(**filter)


async def test_words_about_jobs_tell_how_many_they_took_hold_of(app, task):
    later = task.using(delay=60)
    one, two, three = [await later.enqueue() for _ in range(3)]
    assert await app.jobs.run_now(one.id, str(two.id), uuid4()) == 2
    assert await app.jobs.run_now(one) == 0
    assert await app.jobs.cancel(one, await two.refresh(), one) == 2
    assert await app.jobs.delete(one, three) == 2
    assert await app.jobs.delete(one) == 0
    assert await app.jobs.cancel() == 0
    assert await app.jobs.count() == 1
    for verb in (app.jobs.cancel, app.jobs.run_now, app.jobs.delete, app.dead.retry, app.jobs.get, app.jobs.log):
        for wrong in ("x", 5, None):
            with pytest.raises(InvalidCall):
                await verb(wrong)


async def test_more_ids_than_a_chunk(app, task):
    handles = await app.enqueue([task.call() for _ in range(1100)])
    assert await app.jobs.cancel(*handles) == 1100


async def test_a_word_about_a_job_that_moves_meanwhile_is_said_again(app, task):
    job = await task.enqueue()
    storage = await app._runtime.storage()
    apply, refused = storage.apply, 0

    async def moving(changes):
        nonlocal refused
        if refused < 3:
            refused += 1
            return [REFUSED[Refusal.STALE]]
        return await apply(changes)

    storage.apply = moving
    assert await transition(storage, [str(job.id)], Cancelled()) == 1
    assert refused == 3


async def test_the_log_of_a_job(app, task):
    async with app.worker():
        job = await task.enqueue("log")
        await job.result(timeout=30)
    assert await app.jobs.log(job) == ("one", "two")
    with pytest.raises(NotFound):
        await app.jobs.log(uuid4())


# ---- dead letters ----------------------------------------------------------------------------------
async def dead_letters(app, task, count=3):
    async with app.worker():
        jobs = [await task.using(queue="mail").enqueue("dead") for _ in range(count)]
        for job in jobs:
            with pytest.raises(JobDead):
                await job.result(timeout=30)
    return jobs


async def test_dead_letters_are_found_and_retried(app, task):
    one, *_ = await dead_letters(app, task)
    await task.enqueue()
    assert len((await app.dead.find()).items) == 3
    assert (await app.dead.find(queue="other")).items == ()
    assert await app.dead.retry(one, uuid4()) == 1
    job = await one.refresh()
    assert (job.state, job.attempt, job.failures) == (State.READY, 1, 0)
    assert await app.dead.retry(one) == 0
    assert await app.dead.retry_all(queue="other") == 0
    assert await app.dead.retry_all() == 2
    with pytest.raises(InvalidCall, match="only dead letters"):
        await app.dead.find(state=State.READY)


async def test_a_dead_letter_whose_key_is_taken_stays_dead(app, task):
    unique = task.using(unique=Unique("k"))
    async with app.worker():
        first = await unique.enqueue("dead")
        with pytest.raises(JobDead):
            await first.result(timeout=30)
    second = await unique.enqueue()
    assert not second.duplicate
    assert await app.dead.retry(first) == 0
    assert (await first.refresh()).state is State.DEAD


async def test_purge_needs_a_filter(app, task):
    await dead_letters(app, task)
    for nothing in ({}, dict(cascade=True), dict(state=State.DEAD), dict(state=[State.DEAD]), dict(routing_key=ANY)):
        with pytest.raises(InvalidCall, match="without a filter"):
            await app.dead.purge(**nothing)
    assert await app.dead.purge(task="other") == 0
    assert await app.dead.purge(task="task") == 3
    assert await app.jobs.count() == 0


async def test_export_writes_json_lines(app, task, tmp_path):
    jobs = await dead_letters(app, task)
    path = tmp_path / "dead.jsonl"
    assert await app.dead.export(path, queue="mail") == 3
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["id"] for line in lines} == {str(job.id) for job in jobs}
    assert lines[0]["state"] == "dead"
    assert lines[0]["payload"] == '{"word":"dead"}'
    assert await app.dead.export(str(path), queue="none") == 0
    assert path.read_text() == ""
    with pytest.raises(InvalidCall, match="cannot be written"):
        await app.dead.export(tmp_path / "no" / "such" / "folder")
    assert [each.name for each in tmp_path.iterdir()] == ["dead.jsonl"]


async def test_an_export_that_fails_leaves_no_file_behind(app, task, tmp_path):
    await dead_letters(app, task)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InvalidCall, match="cannot be written"):
        await app.dead.export(folder)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


# ---- queues and workers ----------------------------------------------------------------------------
async def test_a_queue_tells_its_settings(app):
    await app.queues.configure("plain")
    await app.queues.configure("shared", max_depth=9, on_full="drop", drop_below=3, fair=True, weights={"gold": 2})
    plain, shared = await app.queues.list()
    assert (plain.max_depth, plain.on_full, plain.drop_below, plain.fair, plain.weights) == (
        None,
        "reject",
        None,
        False,
        {},
    )
    assert (shared.max_depth, shared.on_full, shared.drop_below) == (9, "drop", 3)
    assert (shared.fair, shared.weights) == (True, {"gold": 2})


@pytest.mark.parametrize("options", [dict(max_depth=2**63), dict(max_depth=1, on_full="drop", drop_below=2**31)])
async def test_bounds_beyond_any_store_are_refused(app, options):
    with pytest.raises(InvalidCall, match="must be"):
        await app.queues.configure("q", **options)


async def test_queues_are_listed_paused_and_resumed(app, task):
    await task.using(queue="b").enqueue()
    await app.queues.configure("a", max_depth=5)
    await app.queues.pause("b")
    a, b = await app.queues.list()
    assert (a.name, a.depth, a.oldest, a.paused) == ("a", 0, None, False)
    assert (b.name, b.depth, b.paused) == ("b", 1, True)
    assert b.oldest is not None
    assert 0 <= b.oldest < 60
    await app.queues.resume("b")
    assert not any(queue.paused for queue in await app.queues.list())


@pytest.mark.parametrize(
    "options",
    [
        dict(max_depth=0),
        dict(max_depth=-1),
        dict(max_depth=1.5),
        dict(max_depth=True),
        dict(on_full="explode"),
        dict(drop_below=5),
        dict(on_full="drop", drop_below="low"),
        dict(fair=1),
        dict(weights={"acme": 2}),
        dict(weights={"a": 1}),
    ],
    ids=str,
)
async def test_bad_settings_of_a_queue_are_refused(app, options):
    with pytest.raises(InvalidCall):
        await app.queues.configure("q", **options)
    for name in ("", "a\nb", "x" * 201, 5):
        with pytest.raises(InvalidCall):
            await app.queues.configure(name)
        with pytest.raises(InvalidCall):
            await app.queues.pause(name)
        with pytest.raises(InvalidCall):
            await app.signal(name)


async def test_workers_are_listed(app, task):
    async with app.worker(name="one"):
        (worker,) = await app.workers.list()
        assert worker.id == "one"
        assert worker.running == 0
        assert abs(worker.seen_at - datetime.now(UTC)) < timedelta(seconds=30)
    assert await app.workers.list() == ()
