"""Tasks, registries and the options of calls."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from perdure import (
    Backoff,
    Context,
    Dead,
    DuplicateTask,
    HoldLost,
    InvalidCall,
    Item,
    JobCancelled,
    Loss,
    NoApp,
    NoLoop,
    Perdure,
    Registry,
    ResultTimeout,
    Retention,
    Retry,
    Skip,
    Snooze,
    State,
    Thresholds,
    Unique,
)

if TYPE_CHECKING:
    from perdure import Context as Ctx


class Special(Context):
    pass


def definition_of(task):
    return task._bind().definition


# ---- what a handler looks like ---------------------------------------------------------------------
def test_the_context_is_found_by_annotation_or_name():
    app = Perdure("memory://")

    async def annotated(x: Context, a: int): ...
    async def subclass(x: Special, a: int): ...
    async def unannotated(ctx, a: int): ...
    async def for_the_checker(ctx: Ctx, a: int): ...
    def plain(context: Context, a: int): ...

    for handler in (annotated, subclass, unannotated, for_the_checker, plain):
        definition = definition_of(app.task(handler))
        assert definition.takes_context, handler
        assert definition.arguments('{"a":1}') == ((1,), {})


def test_what_is_not_a_context_is_an_argument():
    app = Perdure("memory://")

    async def named(ctx: int): ...
    async def other(x): ...
    async def second(a: int, ctx: str): ...
    async def nothing(): ...
    async def keyword(*, ctx): ...

    for handler in (named, other, second, nothing, keyword):
        assert not definition_of(app.task(handler)).takes_context, handler


def test_where_a_handler_runs():
    app = Perdure("memory://")

    class Callable:
        async def __call__(self, a: int): ...

        async def method(self, a: int): ...

        def blocking(self, a: int): ...

    async def coroutine(a: int): ...
    async def together(items: list[Item[int]]): ...

    one = Callable()
    assert definition_of(app.task(name="a")(one)).run_in == "loop"
    assert definition_of(app.task(name="b")(one.method)).run_in == "loop"
    assert definition_of(app.task(name="c")(one.blocking)).run_in == "thread"
    assert definition_of(app.task(name="d")(functools.partial(coroutine, 1))).run_in == "loop"
    assert definition_of(app.task(name="e", run_in="loop")(one.blocking)).run_in == "loop"
    with pytest.raises(InvalidCall, match="runs in the loop"):
        app.task(name="f", run_in="thread")(coroutine)
    assert definition_of(app.task(name="g", run_in="process")(coroutine)).run_in == "process"
    with pytest.raises(InvalidCall, match="none of 'auto', 'loop', 'thread', 'process'"):
        app.task(name="h", run_in="elsewhere")
    with pytest.raises(InvalidCall, match="its handler runs in the loop or in a thread"):
        app.batch_task(name="i", size=2, run_in="process")(together)
    far = Perdure("memory://", run_in="process")
    assert definition_of(far.batch_task(name="j", size=2)(together)).run_in == "loop"
    assert definition_of(far.task(name="k", concurrency=2)(coroutine)).concurrency == 2
    assert definition_of(far.task(name="l")(coroutine)).concurrency == os.cpu_count()


def test_annotations_resolve_with_the_definers_own_locals():
    app = Perdure("memory://")

    @dataclass
    class Local:
        number: int

    @app.task
    async def handler(ctx: Context, value: Local, more: list[Local] = []) -> Local:  # noqa: B006
        return value

    payload = definition_of(handler).payload((Local(1),), {"more": [Local(2)]})
    assert definition_of(handler).arguments(payload) == ((Local(1), [Local(2)]), {})
    assert definition_of(handler).decode_result('{"number":3}') == Local(3)


def test_annotations_resolve_through_a_helper():
    app = Perdure("memory://")

    def declare(handler):
        Local = int  # not the one that is meant  # noqa: F841
        return app.task(handler)

    @dataclass
    class Local:
        number: int

    @declare
    async def handler(value: Local): ...

    assert definition_of(handler).arguments('{"value":{"number":1}}') == ((Local(1),), {})


def test_a_forward_reference_is_resolved_at_first_use():
    app = Perdure("memory://")

    @app.task
    async def handler(value: Later) -> Later: ...

    with pytest.raises(InvalidCall, match=r"'Later' of parameter 'value' does not resolve"):
        handler.call(1)

    @dataclass
    class Later:
        number: int

    assert handler.call(Later(1))._payload == '{"value":{"number":1}}'
    assert handler._declared.shape._frame is not None  # the result's is still to come
    assert definition_of(handler).decode_result('{"number":3}') == Later(3)
    assert handler._declared.shape._frame is None  # the definer's locals are let go


def test_a_name_that_never_resolves_is_told():
    app = Perdure("memory://")

    @app.task
    async def handler(value: Nowhere): ...  # noqa: F821

    with pytest.raises(InvalidCall, match="Nowhere"):
        handler.call(1)


# ---- names -----------------------------------------------------------------------------------------
def test_a_second_task_of_a_name_is_refused():
    app = Perdure("memory://")

    @app.task(name="same")
    async def one(): ...

    with pytest.raises(DuplicateTask, match="two tasks are named 'same'"):

        @app.task(name="same")
        async def two(): ...

    with pytest.raises(DuplicateTask, match="same"):

        @app.task(name="three", aliases=["same"])
        async def three(): ...

    assert set(app.definitions()) == {"same"}


def test_the_same_function_again_replaces():
    app = Perdure("memory://")

    def declare(answer):
        @app.task
        async def handler():
            return answer

        return handler

    first = declare(1)
    second = declare(2)
    assert app.definitions()["handler"].handler is second._declared.handler
    assert first.call()._payload == "{}"


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "\x7f", "x" * 201, "é" * 101, "\ud800", 5, None])
def test_names_that_are_refused(name):
    app = Perdure("memory://")
    with pytest.raises(InvalidCall):
        app.task(name=name)
    with pytest.raises(InvalidCall):
        app.task(aliases=[name])
    with pytest.raises(InvalidCall):
        app.task(queue=name)


@pytest.mark.parametrize("handler", [5, None, "x", [1]])
def test_only_functions_become_tasks(handler):
    with pytest.raises(InvalidCall):
        Perdure("memory://").task(name="x")(handler)


def _one_by_one(number: int):
    yield number


async def _one_by_one_later(number: int):
    yield number


class _Yielding:
    def __call__(self, number: int):
        yield number


@pytest.mark.parametrize(
    "handler", [_one_by_one, _one_by_one_later, _Yielding(), functools.partial(_one_by_one, number=1)]
)
def test_a_handler_that_yields_is_refused(handler):
    app = Perdure("memory://")
    with pytest.raises(InvalidCall, match="its handler yields, and a job has one result"):
        app.task(name="rows")(handler)


def test_a_context_that_does_not_come_first_is_refused():
    app = Perdure("memory://")

    async def late(number: int, ctx: Context) -> None: ...
    async def by_name(number: int, *, context: Context | None = None) -> None: ...

    with pytest.raises(InvalidCall, match="parameter 'ctx' is a Context, which comes first"):
        app.task(late)
    assert app.task(by_name).call(1)._payload == '{"number":1}'


async def test_a_context_says_what_it_is_of():
    app = Perdure("memory://")

    @app.task(name="tell")
    async def tell(ctx: Context) -> str:
        assert ctx.fence in repr(ctx)
        return repr(ctx)

    assert re.fullmatch(r"<Context of tell [0-9a-f-]{36}:\d+>", await tell.run())


def test_a_wrong_call_is_shown_what_the_task_takes():
    app = Perdure("memory://")

    @app.task
    async def send(to: str, when: datetime | None = None, *numbers: int) -> None: ...

    @app.batch_task(size=2)
    async def embed(items: list[Item[str]]) -> None: ...

    with pytest.raises(
        InvalidCall, match=r"it takes send\(to: str, when: datetime.datetime \| None = None, \*numbers: int\)"
    ):
        send.call()
    with pytest.raises(InvalidCall, match=r"it takes embed\(items: str\)"):
        embed.call("a", "b")


def test_an_unknown_option_is_told_with_those_there_are():
    with pytest.raises(InvalidCall, match=r"Perdure has no option 'durabilty'; .* dead_retention, durability, expires"):
        Perdure("memory://", durabilty="full")
    with pytest.raises(InvalidCall, match=r"Registry has no option 'prefx'; .* prefix, priority"):
        Registry(prefx="a.")


def test_a_lambda_needs_a_name():
    app = Perdure("memory://")
    with pytest.raises(InvalidCall, match="no name of its own"):
        app.task(lambda: 1)
    assert app.task(name="one")(lambda: 1).name == "one"


def test_a_task_is_not_made_twice():
    app = Perdure("memory://")

    @app.task
    async def handler(): ...

    with pytest.raises(InvalidCall, match="a task already"):
        app.task(handler)


async def test_a_parameter_may_have_any_name():
    app = Perdure("memory://")

    @app.task
    async def named(self: int, *, function: int = 0, args: int = 0, kwargs: int = 0) -> list[int]:
        return [self, function, args, kwargs]

    @app.task
    def threaded(*, self: int) -> int:
        return self

    async with app.worker():
        job, other = await named.enqueue(self=1, function=2, args=3, kwargs=4), await threaded.enqueue(self=5)
        assert await job.result(timeout=30) == [1, 2, 3, 4]
        assert await other.result(timeout=30) == 5
        called = await app.enqueue(named.call(self=6))
        assert await called.result(timeout=30) == [6, 0, 0, 0]
        assert await named.run(self=7) == [7, 0, 0, 0]
        assert await asyncio.to_thread(lambda: threaded.sync.run(self=8)) == 8


# ---- registries ------------------------------------------------------------------------------------
async def test_a_registrys_task_needs_an_app():
    billing = Registry(prefix="billing.", queue="billing", max_attempts=7)

    @billing.task
    async def charge(cents: int) -> None: ...

    assert charge.name == "billing.charge"
    with pytest.raises(NoApp, match=r"billing\.charge"):
        await charge.enqueue(1)
    with pytest.raises(NoApp):
        charge.handle("0" * 32)
    call = charge.call(5)

    app = Perdure("memory://", timeout=9, max_attempts=2)
    app.include(billing)
    job = await (await app.enqueue(call)).refresh()
    assert (job.task, job.queue, job.max_attempts, job.timeout) == ("billing.charge", "billing", 7, 9.0)


async def test_an_include_may_add_a_prefix_and_sees_later_tasks():
    inner, outer, app = Registry(prefix="in."), Registry(), Perdure("memory://")
    outer.include(inner, prefix="out.")
    app.include(outer, prefix="app.")

    @inner.task(aliases=["old"])
    async def late(): ...

    assert set(app.definitions()) == {"app.out.in.late", "app.out.in.old"}
    assert late.name == "app.out.in.late"
    assert (await (await late.enqueue()).refresh()).task == "app.out.in.late"


def test_includes_meet_duplicates_too():
    app, one, two = Perdure("memory://"), Registry(), Registry()

    @one.task(name="x")
    async def first(): ...

    @two.task(name="x")
    async def second(): ...

    app.include(one)
    with pytest.raises(DuplicateTask):
        app.include(two)
    app.include(two, prefix="two.")
    assert set(app.definitions()) == {"x", "two.x"}
    with pytest.raises(DuplicateTask):

        @one.task(name="two.x")
        async def third(): ...

    with pytest.raises(InvalidCall, match="include itself"):
        one.include(one)


async def test_a_task_of_another_app_is_refused():
    mine, theirs = Perdure("memory://"), Perdure("memory://")

    @theirs.task
    async def handler(): ...

    with pytest.raises(InvalidCall, match="not registered with this app"):
        await mine.enqueue(handler.call())
    with pytest.raises(InvalidCall, match="not registered with this app"):
        await mine.enqueue([handler.call()])


# ---- options ---------------------------------------------------------------------------------------
BAD_CALL_OPTIONS = [
    dict(delay=-1),
    dict(delay=float("nan")),
    dict(delay=float("inf")),
    dict(delay="5"),
    dict(delay=True),
    dict(delay=timedelta(seconds=-1)),
    dict(delay=1e12),
    dict(at=datetime(2026, 1, 1)),
    dict(at="tomorrow"),
    dict(at=5),
    dict(delay=1, at=datetime(2030, 1, 1, tzinfo=UTC)),
    dict(queue=""),
    dict(queue="a\nb"),
    dict(queue="x" * 201),
    dict(queue=None),
    dict(priority=1.5),
    dict(priority=True),
    dict(priority=2**40),
    dict(key=""),
    dict(key="x" * 513),
    dict(key="a\x00b"),
    dict(key="\ud800"),
    dict(key=5),
    dict(tenant=""),
    dict(tenant="a\tb"),
    dict(routing_key="x\n"),
    dict(tags="abc"),
    dict(tags=[1]),
    dict(tags=["a\nb"]),
    dict(tags=["x"] * 101),
    dict(meta={"a": 1}),
    dict(meta={1: "a"}),
    dict(meta=[("a", "b")]),
    dict(meta={"a": "x" * 70_000}),
    dict(meta={"a": "\ud800"}),
    dict(max_attempts=0),
    dict(max_attempts=-1),
    dict(max_attempts="3"),
    dict(max_attempts=2.0),
    dict(timeout=0),
    dict(timeout=-1),
    dict(expires=0),
    dict(expires="1h"),
    dict(backoff=5),
    dict(retention="delete"),
    dict(dead_retention=None),
    dict(unique="key"),
    dict(unique=True),
    dict(after="x"),
    dict(run_when="never"),
    dict(colour="red"),
    dict(lease=5),
]


@pytest.mark.parametrize("options", BAD_CALL_OPTIONS, ids=lambda options: str(options)[:40])
def test_bad_options_of_a_call_are_refused_at_once(options):
    app = Perdure("memory://")

    @app.task
    async def handler(): ...

    with pytest.raises(InvalidCall) as caught:
        handler.using(**options)
    assert "handler.using" in str(caught.value)
    assert any(name in str(caught.value) for name in options)


BAD_TASK_OPTIONS = [
    dict(lease=0),
    dict(lease=-5),
    dict(run_in="moon"),
    dict(concurrency=0),
    dict(retry_on="ValueError"),
    dict(retry_on=(ValueError, "x")),
    dict(retry_on=int),
    dict(critical="yes"),
    dict(limit=5),
    dict(delay=5),
    dict(max_attempts=0),
    dict(tags="x"),
]


@pytest.mark.parametrize("options", BAD_TASK_OPTIONS, ids=str)
def test_bad_options_of_a_task_are_refused_at_once(options):
    with pytest.raises(InvalidCall):
        Perdure("memory://").task(**options)
    with pytest.raises(InvalidCall):
        Registry(**options)
    with pytest.raises(InvalidCall):
        Perdure("memory://", **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Unique(""),
        lambda: Unique("x" * 513),
        lambda: Unique(5),
        lambda: Unique(scope="sometimes"),
        lambda: Unique(scope="window"),
        lambda: Unique(scope="window", window=0),
        lambda: Unique(scope="window", window=-1),
        lambda: Unique(scope="any", window=5),
        lambda: Backoff.fixed(-1),
        lambda: Backoff.exponential(1, multiplier=0.5),
        lambda: Retention.keep(last=-1),
        lambda: Thresholds(depth="100"),
        lambda: Thresholds(dead=True),
        lambda: Thresholds(age=-1),
        lambda: Thresholds(workers=-1),
    ],
)
def test_bad_values_are_refused_when_made(make):
    with pytest.raises(InvalidCall):
        make()


async def test_using_whole():
    app = Perdure("memory://")

    @app.task(tags=["default"], retention=Retention.keep(age=5))
    async def handler(a: int): ...

    at = datetime(2040, 1, 1, tzinfo=UTC)
    task = handler.using(
        at=at,
        priority=9,
        queue="bulk",
        key="endpoint-7",
        tenant="acme/main",
        routing_key="vector",
        unique=Unique("event-1"),
        tags=["x", "y", "x"],
        meta={"request": "1"},
        max_attempts=None,
        timeout=timedelta(seconds=5),
        expires=timedelta(days=365 * 30),
        backoff=Backoff.fixed(60),
        retention=Retention.delete(),
        dead_retention=Retention.keep(last=5),
    )
    job = await (await task.enqueue(1)).refresh()
    assert (job.state, job.run_at, job.priority, job.queue) == (State.SCHEDULED, at, 9, "bulk")
    assert (job.key, job.tenant, job.routing_key) == ("endpoint-7", "acme/main", "vector")
    assert (job.tags, job.meta) == (("x", "y"), {"request": "1"})
    assert (job.max_attempts, job.timeout) == (None, 5.0)
    assert job.expires_at is not None
    plain = await (await handler.enqueue(1)).refresh()
    assert (plain.tags, plain.queue, plain.max_attempts, plain.timeout) == (("default",), "default", 3, 300.0)


async def test_using_upon_using():
    app = Perdure("memory://")

    @app.task
    async def handler(): ...

    later = handler.using(delay=60, queue="a").using(at=datetime(2040, 1, 1, tzinfo=UTC))
    job = await (await later.enqueue()).refresh()
    assert (job.queue, job.run_at.year) == ("a", 2040)


# ---- unique ----------------------------------------------------------------------------------------
async def test_a_key_is_unique_per_task_and_tenant():
    app = Perdure("memory://")

    @app.task
    async def one(a: int = 0): ...

    @app.task
    async def two(a: int = 0): ...

    unique = Unique("k" * 512)
    first = await one.using(unique=unique).enqueue(1)
    again = await one.using(unique=unique).enqueue(2)
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    assert not (await two.using(unique=unique).enqueue(1)).duplicate
    assert not (await one.using(unique=unique, tenant="acme").enqueue(1)).duplicate
    assert (await one.using(unique=unique, tenant="acme").enqueue(1)).duplicate


async def test_a_key_may_come_from_the_call_or_from_its_arguments():
    app = Perdure("memory://")

    @app.task(unique=Unique())
    async def handler(a: int, b: int = 2): ...

    assert not (await handler.enqueue(1)).duplicate
    assert (await handler.enqueue(1, 2)).duplicate
    assert (await handler.enqueue(b=2, a=1)).duplicate
    assert not (await handler.enqueue(1, 3)).duplicate
    assert not (await handler.using(key="mine").enqueue(1)).duplicate
    assert (await handler.using(key="mine").enqueue(9)).duplicate
    assert not (await handler.using(unique=None).enqueue(1)).duplicate


async def test_two_of_one_key_in_a_list_are_duplicates():
    app = Perdure("memory://")

    @app.task
    async def handler(a: int): ...

    once = handler.using(unique=Unique("k"))
    first, second = await app.enqueue([once.call(1), once.call(2)])
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)


# ---- retry_on --------------------------------------------------------------------------------------
def test_which_errors_are_worth_another_attempt():
    app = Perdure("memory://")

    def judged(**options):
        return definition_of(app.task(**options)(lambda: None)).retries

    assert judged(name="a")(ValueError())
    assert judged(name="b", retry_on=OSError)(ConnectionError())
    assert not judged(name="c", retry_on=OSError)(ValueError())
    assert judged(name="d", retry_on=(KeyError, OSError))(KeyError())
    assert not judged(name="e", retry_on=lambda error: "again" in str(error))(ValueError("no"))
    assert judged(name="f", retry_on=lambda error: "again" in str(error))(ValueError("again"))


# ---- run here --------------------------------------------------------------------------------------
async def test_run_here_and_now():
    app = Perdure("memory://")

    @app.task
    async def handler(ctx: Context, when: datetime, pair: tuple[int, int]) -> str:
        assert Context.current() is ctx
        assert pair == (1, 2)
        await ctx.progress({"percent": 5})
        return f"{ctx.job.task} {when:%Y} {ctx.job.progress} {ctx.fence.endswith(':1')}"

    @app.task
    def blocking(ctx: Context, n: int) -> int:
        ctx.sync.progress(n)
        return Context.current().job.attempt + n

    assert await handler.run(datetime(2026, 1, 1), pair=(1, 2)) == "handler 2026 {'percent': 5} True"
    assert await blocking.run(1) == 2
    assert await app.jobs.count() == 0
    with pytest.raises(InvalidCall):
        await handler.run("x", (1, 2))


# ---- no loop ---------------------------------------------------------------------------------------
def test_outside_a_loop_a_verb_names_its_blocking_form():
    app = Perdure("memory://")

    @app.task(name="mail.send")
    async def send_email(to: str): ...

    job = send_email.sync.enqueue("a")
    verbs = [
        (lambda: send_email.enqueue("a"), r"send_email\.sync\.enqueue"),
        (lambda: send_email.run("a"), r"send_email\.sync\.run"),
        (lambda: job.result(), r"job\.sync\.result"),
        (lambda: job.watch(), r"job\.sync\.watch"),
        (lambda: app.enqueue([]), r"app\.sync\.enqueue"),
        (lambda: app.close(), r"app\.sync\.close"),
        (lambda: app.jobs.get(job.id), r"app\.jobs\.sync\.get"),
        (lambda: app.dead.retry(), r"app\.dead\.sync\.retry"),
        (lambda: app.queues.list(), r"app\.queues\.sync\.list"),
        (lambda: app.workers.list(), r"app\.workers\.sync\.list"),
    ]
    for verb, words in verbs:
        with pytest.raises(NoLoop, match=words):
            verb()


def test_frameworks_see_that_a_verb_is_to_be_awaited():
    """Starlette's background tasks, mocks and others ask; what they take for a plain function they call in a thread."""
    app = Perdure("memory://")

    @app.task
    async def send_email(to: str): ...

    asks = asyncio.iscoroutinefunction if sys.version_info < (3, 12) else inspect.iscoroutinefunction
    for verb in (send_email.enqueue, app.enqueue, app.jobs.get, send_email.handle(uuid4()).result):
        assert asks(verb)
    for plain in (send_email.call, send_email.sync.enqueue, send_email.handle(uuid4()).watch):
        assert not asks(plain)


# ---- what is raised ---------------------------------------------------------------------------------
def test_errors_and_outcomes_cross_into_other_processes():
    """A handler's own pool of processes takes what is raised in it apart, and makes it anew here: as a copy does."""
    app = Perdure("memory://")

    @app.task
    async def task() -> None: ...

    job = task.sync.enqueue().sync.refresh()
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    errors = [
        JobCancelled("gone", job),
        HoldLost("told to stop", Loss.TIMEOUT),
        ResultTimeout("late"),
        InvalidCall("no"),
    ]
    outcomes = [Retry(30), Retry(at=tomorrow, reason="busy"), Snooze(5), Skip("done", result=[1]), Dead("bad address")]
    for raised in (*errors, *outcomes):
        for again in (copy.copy(raised), copy.deepcopy(raised)):
            assert (type(again), str(again), vars(again)) == (type(raised), str(raised), vars(raised))
