"""An error about an option names it, and options that contradict each other are refused before anything is stored."""

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import InvalidCall, Perdure, chain, graph, group
from perdure.testing import ManualClock
from tests.support import addresses


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def app(clock):
    return Perdure("memory://", clock=clock)


@pytest.fixture
def task(app):
    @app.task
    async def task(number: int = 0) -> int:
        return number

    return task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(after=["x"]), "task.using(…): after[0]: 'x' is not a job id (a UUID)"),
        (dict(after=[5]), "task.using(…): after[0]: a job id, handle or job is needed, not int"),
        (dict(tags=[1]), "task.using(…): tags[0] must be a text, not int"),
        (dict(tags=["a", ""]), "task.using(…): tags[1] must not be empty"),
    ],
)
def test_an_entry_of_a_list_is_named(task, options, message):
    with pytest.raises(InvalidCall) as caught:
        task.using(**options)
    assert str(caught.value) == message


def test_an_alias_is_named(app):
    with pytest.raises(InvalidCall, match=r"^@task: aliases\[0\] must be a text, not int$"):
        app.task(aliases=[1])


async def test_a_filter_is_named(app):
    with pytest.raises(InvalidCall, match=r"^chain_id: 'x' is not a job id \(a UUID\)$"):
        await app.jobs.find(chain_id="x")
    with pytest.raises(InvalidCall, match=r"^chain_id: a job id, handle or job is needed, not int$"):
        await app.jobs.count(chain_id=5)


async def test_the_name_of_an_answer_is_named(app, task):
    job = await task.enqueue()
    with pytest.raises(InvalidCall, match=r"^the name of the answer must not be empty$"):
        await app.jobs.answer(job, "")
    with pytest.raises(InvalidCall, match=r"^the name of the answer must be a text, not int$"):
        await app.jobs.answer(job, 5)


# ---- delay, at and expires -------------------------------------------------------------------------
WORDS = "it would expire before it may begin, and never run: "


@pytest.mark.parametrize(("delay", "expires"), [(100, 50), (50, 50), (timedelta(minutes=2), 60)])
def test_a_job_that_expires_before_it_is_due_is_refused(task, delay, expires):
    for wrong in (
        lambda: task.using(delay=delay, expires=expires),
        lambda: task.using(delay=delay).using(expires=expires),
        lambda: task.using(expires=expires).using(delay=delay),
    ):
        with pytest.raises(InvalidCall) as caught:
            wrong()
        assert str(caught.value).startswith("task.using(…): " + WORDS)
        assert "delay=" in str(caught.value)
        assert "expires=" in str(caught.value)


async def test_a_delay_beyond_the_tasks_own_expiry_is_refused(app):
    @app.task(expires=50)
    async def short() -> None: ...

    late = Perdure("memory://", expires=50)

    @late.task(name="late")
    async def by_default() -> None: ...

    with pytest.raises(InvalidCall, match=WORDS):
        short.using(delay=50)
    with pytest.raises(InvalidCall, match=WORDS):
        await by_default.using(delay=50).enqueue()
    with pytest.raises(InvalidCall, match=WORDS):
        await late.enqueue([by_default.using(delay=50).call()])
    await short.using(delay=49.9).enqueue()
    await short.using(delay=50, expires=None).enqueue()


@pytest.mark.parametrize("name", [*addresses.OF_EACH_KIND, "memory", "sqlite"])
async def test_an_instant_beyond_the_expiry_is_refused_when_it_is_enqueued(name, clock, tmp_path):
    app = Perdure(addresses.address(name, tmp_path), clock=clock)

    @app.task
    async def task(number: int = 0) -> None: ...

    at = clock.now() + timedelta(seconds=50)
    late = task.using(at=at, expires=50)
    for wrong in (
        late.enqueue,
        lambda: app.enqueue(late.call()),
        lambda: app.enqueue([late.call(n) for n in range(2)]),
    ):
        with pytest.raises(InvalidCall, match=f"^task: {WORDS}at=.*, and expires=50 s"):
            await wrong()
    assert await app.jobs.count() == 0
    clock.advance(1)  # now it may run, for a second
    await late.enqueue()
    assert await app.jobs.count() == 1
    await app.close()


# ---- nothing to do ---------------------------------------------------------------------------------
async def test_a_graph_of_no_calls_gives_no_handles(app, task):
    assert await app.enqueue(graph()) == await app.enqueue([]) == []
    with pytest.raises(InvalidCall, match="needs at least one call"):
        chain()
    with pytest.raises(InvalidCall, match="a group of no calls has no job to wait for"):
        await app.enqueue(group())
    assert await app.jobs.count() == 0


# ---- a def in the loop -----------------------------------------------------------------------------
async def test_a_def_handler_may_be_called_in_the_loop():
    app = Perdure("memory://", run_in="loop")

    @app.task
    def plain() -> bool:
        return threading.current_thread() is threading.main_thread()

    @app.task
    def gives_a_coroutine() -> bool:
        return asyncio.sleep(0, result=threading.current_thread() is threading.main_thread())

    async with app.worker():
        assert await (await plain.enqueue()).result(timeout=10) is True
        assert await (await gives_a_coroutine.enqueue()).result(timeout=10) is True
