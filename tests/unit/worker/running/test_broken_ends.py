"""Ends that break when they are looked at: an error without words, a value that cannot be judged, what only a generator
raises. Each is the failure of its own job, wherever the handler ran: the slot goes on, and so does the worker. None of it
concerns a store."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel, field_validator

from perdure import Dead, Item, JobDead, Perdure, State
from perdure.worker.running import completion
from perdure.worker.running.batches import Batch
from perdure.worker.running.start import Starter


class Wordless(Exception):
    def __str__(self) -> str:
        return self.missing  # AttributeError


class NoText(Exception):
    def __str__(self) -> str:
        return None


class Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class NoRepr(StopIteration):
    def __repr__(self) -> str:
        raise LookupError

    __str__ = __repr__


class Unreadable(ExceptionGroup):
    def subgroup(self, wanted):
        raise LookupError("no groups here")


class Beyond(BaseException):
    """As the failures of some test tools: no Exception, and no outcome."""


class Leaving(ExceptionGroup):
    def subgroup(self, wanted):
        raise Beyond("no groups here")


class Careless(Dead):
    def __init__(self) -> None: ...


ERRORS = {
    "wordless": (Wordless, "Wordless", "no words: its __str__ raised AttributeError"),
    "no text": (NoText, "NoText", "no words: its __str__ raised TypeError"),
    "leaves": (Leaves, "Leaves", "no words: its __str__ raised SystemExit"),
    "a group": (lambda: Unreadable("many", [ValueError()]), "LookupError", "no groups here"),
    "a group, beyond": (lambda: Leaving("many", [ValueError()]), "Beyond", "no groups here"),
    "beyond": (lambda: Beyond("and over"), "Beyond", "and over"),
    "an outcome": (Careless, "AttributeError", "'Careless' object has no attribute 'reason'"),
    "a syntax error": (lambda: SyntaxError("odd", ("x.py", 1, "no number", "text")), "SyntaxError", "odd"),
    "generator exit": (GeneratorExit, "GeneratorExit", ""),
    "system exit": (lambda: SystemExit(3), "SystemExit", "3"),
}
WAYS = ["loop", "loop, later", "thread", "middleware", "around a thread", "raised around", "batch", "batch in a thread"]
of_each_error = pytest.mark.parametrize("which", ERRORS)
of_each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def app():
    return Perdure("memory://", max_attempts=1)


@of_each_way
@of_each_error
async def test_an_end_that_breaks_is_a_failure_and_the_slot_goes_on(app, way, which):
    error, kind, message = ERRORS[which]
    if error is GeneratorExit and way in ("around a thread", "batch in a thread"):
        kind, message = "RuntimeError", "the handler raised GeneratorExit"  # no future carries the thing itself
    task = failing(app, way, error)
    async with app, app.worker(concurrency=1):
        for _ in range(2):  # the second finds the slot free
            await fails_with(await task.enqueue(0), kind, message)
        assert await (await task.enqueue(1)).result(timeout=10) == 1


@pytest.mark.parametrize("way", ["thread", "around a thread", "batch in a thread"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, NoRepr])
async def test_what_a_thread_raises_is_no_signal_to_the_program(app, way, error):
    """No Ctrl-C ever arrives in a thread, and what a future cannot carry is told without its words."""
    task = failing(app, way, error)
    async with app, app.worker(concurrency=1):
        with pytest.raises(JobDead):
            await (await task.enqueue(0)).result(timeout=10)
        assert await (await task.enqueue(1)).result(timeout=10) == 1


async def test_a_handler_with_a_transaction(app):
    @app.task
    async def odd(ctx) -> None:
        await ctx.transaction()
        raise Wordless

    async with app, app.worker(concurrency=1):
        for _ in range(2):
            await fails_with(await odd.enqueue(), "Wordless", "no words")


async def test_a_judge_whose_own_error_has_no_words(app, caplog):
    def judge(error: BaseException) -> bool:
        raise Wordless

    @app.task(retry_on=judge)
    async def odd() -> None:
        raise Wordless

    async with app, app.worker(concurrency=1):
        await fails_with(await odd.enqueue(), "Wordless", "no words")
    assert "retry_on of odd broke: Wordless: this Wordless has no words" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError, StopIteration, Beyond])
@pytest.mark.parametrize("way", ["loop", "thread", "middleware", "batch", "claim"])
async def test_arguments_whose_reading_breaks(app, way, error):
    enqueued = False

    class Odd(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def broken(cls, n: int) -> int:
            if n == 0 and enqueued:
                raise error("not today")
            return n

    async def on_loop(odd: Odd) -> int:
        return odd.n

    def plain(odd: Odd) -> int:
        return odd.n

    async def batch(items: list[Item[Odd]]) -> list[int]:
        return [item.args.n for item in items]

    if way == "middleware":
        app.middleware(passes)
    if way in ("batch", "claim"):
        odd = app.batch_task(name="odd", size=2, wait=0.01)(batch)
    else:
        odd = app.task(name="odd")(plain if way == "thread" else on_loop)

    async with app:
        bad, good = await odd.enqueue(Odd(n=0)), await odd.enqueue(Odd(n=1))
        enqueued = True
        if way == "claim":
            async with app.claim(tasks=["odd"], limit=2) as items:
                assert [item.job.id for item in items] == [good.id]
        async with app.worker(concurrency=1):
            with pytest.raises(JobDead, match=r"not today"):
                await bad.result(timeout=30)
            assert await good.result(timeout=10) == 1


@pytest.mark.parametrize("error", [Wordless, Beyond])
async def test_results_of_a_batch_that_cannot_be_counted(app, error):
    class Odd(list):
        def __len__(self) -> int:
            raise error

    @app.batch_task(size=1)
    async def odd(items: list[Item[int]]) -> list[int]:
        return Odd()

    async with app, app.worker(concurrency=1):
        for n in range(2):
            await fails_with(await odd.enqueue(n), error.__name__, "")


@pytest.mark.parametrize("way", ["loop", "loop, later", "thread", "batch"])
async def test_the_last_line_of_defence(app, way, monkeypatch, caplog):
    """Whatever breaks while an end is told: the job has failed, and the log names it."""

    def broken(*_: object) -> None:
        raise LookupError("a fault of our own")

    task = failing(app, way, ValueError)
    async with app, app.worker(concurrency=1):
        monkeypatch.setattr(completion, "change_for", broken)
        job = await task.enqueue(0)
        await fails_with(job, "LookupError", "a fault of our own")
        monkeypatch.undo()
        assert await (await task.enqueue(1)).result(timeout=10) == 1
    assert f"the end of job {job.id} (task) broke: LookupError: a fault of our own" in caplog.text


@pytest.mark.parametrize("way", ["loop", "thread", "batch"])
async def test_behind_the_last_line_the_lease_ends(way, monkeypatch, caplog):
    """When not even a failure can be told, the slot is free and the job comes back when its lease is over."""

    def broken(*_: object, **__: object) -> None:
        raise LookupError("a fault of our own")

    app = Perdure("memory://", max_attempts=1, lease=0.6)
    task = failing(app, way, ValueError)
    async with app, app.worker(concurrency=1):
        monkeypatch.setattr(completion, "change_for", broken)
        monkeypatch.setattr(completion, "failure_of", broken)
        job = await task.enqueue(0)
        async with asyncio.timeout(10):
            while caplog.text.count(f"the end of job {job.id}") < 2:
                await asyncio.sleep(0.01)
        monkeypatch.undo()
        assert await (await task.enqueue(1)).result(timeout=10) == 1
        with pytest.raises(JobDead):
            await job.result(timeout=10)
        assert (await job.refresh()).losses == 1


@pytest.mark.parametrize("way", ["loop", "thread", "batch"])
async def test_a_beginning_that_breaks_costs_no_slot(app, way, monkeypatch):
    """Neither a slot, nor a thread, nor the one batch at once that a task may have."""

    def broken(*_: object) -> None:
        raise LookupError("a fault of our own")

    if way == "batch":

        @app.batch_task(name="task", size=1, concurrency=1)
        async def task(items: list[Item[int]]) -> list[int]:
            return [item.args for item in items]
    else:
        task = failing(app, way, ValueError)
    async with app, app.worker(concurrency=1):
        with monkeypatch.context() as patched:
            patched.setattr(Batch, "begin", broken)
            patched.setattr(Starter, "start", broken)
            for _ in range(2):
                await fails_with(await task.enqueue(1), "LookupError", "a fault of our own")
        assert await (await task.enqueue(1)).result(timeout=10) == 1


async def test_a_slot_that_is_closed_while_its_handler_waits_is_not_its_failure(app):
    """A loop that is thrown away closes its coroutines with a GeneratorExit, which no handler has raised."""
    begun = asyncio.Event()

    @app.task
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app, app.worker(grace=0):
        job = await waits.enqueue()
        await begun.wait()
        slot = next(task for task in asyncio.all_tasks() if task.get_name() == "perdure slot")
        with pytest.raises(GeneratorExit):
            slot.get_coro().throw(GeneratorExit)
        assert (await job.refresh()).state is State.RUNNING


async def passes(ctx, call_next):
    return await call_next()


# ---- tasks that fail at 0, and give what they got else ------------------------------------------------
def failing(app, way, error):
    def plain(n: int) -> int:
        if n == 0:
            raise error()
        return n

    async def on_loop(n: int) -> int:
        if way == "loop, later":
            await asyncio.sleep(0)
        return plain(n)

    def batch(items: list[Item[int]]) -> list[int]:
        return [plain(item.args) for item in items]

    async def batch_on_loop(items: list[Item[int]]) -> list[int]:
        return batch(items)

    async def raises(ctx, call_next):
        return plain(await call_next())

    async def same(n: int) -> int:
        return n

    match way:
        case "batch" | "batch in a thread":
            return app.batch_task(name="task", size=1)(batch_on_loop if way == "batch" else batch)
        case "middleware" | "around a thread":
            app.middleware(passes)
        case "raised around":
            app.middleware(raises)
            return app.task(name="task")(same)
    return app.task(name="task")(plain if "thread" in way else on_loop)


async def fails_with(job, kind, message):
    with pytest.raises(JobDead):
        await job.result(timeout=30)
    error = (await job.refresh()).errors[-1]
    assert error.kind == kind
    assert message in error.message
