"""Names that other queues use, misspelled options and options in the wrong place: the error says what to write instead."""

import asyncio
import warnings

import pytest

from perdure import InvalidCall, Perdure, Registry, ResultTimeout


@pytest.fixture
def app():
    return Perdure("memory://")


@pytest.fixture
def send(app):
    @app.task
    async def send(to: str) -> str:
        return to

    return send


@pytest.mark.parametrize(
    ("verb", "instead"),
    [
        ("delay", "await send.enqueue(…), or send.sync.enqueue(…)"),
        ("apply_async", "await send.using(delay=…, queue=…).enqueue(…)"),
        ("apply", "await send.run(…)"),
        ("defer", "await send.enqueue(…), or send.sync.enqueue(…)"),
        ("defer_async", "await send.enqueue(…), or send.sync.enqueue(…)"),
        ("configure", "send.using(…)"),
        ("send", "await send.enqueue(…), or send.sync.enqueue(…)"),
        ("send_with_options", "await send.using(delay=…, queue=…).enqueue(…)"),
        ("kiq", "await send.enqueue(…), or send.sync.enqueue(…)"),
        ("s", "send.call(…)"),
        ("si", "send.call(…)"),
        ("signature", "send.call(…)"),
        ("message", "send.call(…)"),
        ("schedule", "await send.using(delay=…).enqueue(…), or @app.schedule(…) above @app.task"),
    ],
)
def test_a_verb_of_another_queue_names_ours(send, verb, instead):
    with pytest.raises(AttributeError) as caught:
        getattr(send, verb)
    assert str(caught.value) == f"a task has no {verb!r}; write {instead}"
    assert not hasattr(send, verb)


def test_a_blocking_task_names_the_blocking_verb(send):
    with pytest.raises(AttributeError, match=r"a task has no 'delay'; write await send\.enqueue"):
        _ = send.sync.delay
    with pytest.raises(AttributeError, match=r"'Task' object has no attribute 'nothing_such'"):
        _ = send.nothing_such
    with pytest.raises(AttributeError, match=r"'SyncTask' object has no attribute 'nothing_such'"):
        _ = send.sync.nothing_such


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        (dict(delay=5), "delay is an option of the call: send.using(delay=…).enqueue(…)"),
        (dict(queue="mail"), "queue is an option of the call: send.using(queue=…).enqueue(…)"),
        (dict(countdown=5), "the option is named delay: send.using(delay=…).enqueue(…)"),
        (dict(eta=5), "the option is named at: send.using(at=…).enqueue(…)"),
        (dict(max_retries=5), "the option is named max_attempts: send.using(max_attempts=…).enqueue(…)"),
        (dict(run_in="loop"), "run_in is an option of the task: @app.task(run_in=…)"),
    ],
)
async def test_an_option_among_the_arguments_is_told_where_it_belongs(app, send, options, instead):
    for wrong in (send.enqueue, send.run):
        with pytest.raises(InvalidCall) as caught:
            await wrong("a", **options)
        assert str(caught.value).endswith(instead)
    with pytest.raises(InvalidCall) as caught:
        send.call("a", **options)
    assert str(caught.value).endswith(instead)
    assert await app.jobs.count() == 0


async def test_a_parameter_that_is_named_as_an_option_is_an_argument(app):
    @app.task
    async def wait(delay: int) -> int:
        return delay

    assert await wait.run(delay=5) == 5


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("delay", "delay is an option of the call: task.using(delay=…).enqueue(…)"),
        ("max_retries", "the option is named max_attempts"),
        ("retries", "the option is named max_attempts"),
        ("autoretry_for", "the option is named retry_on"),
        ("time_limit", "the option is named timeout"),
        ("rate_limit", 'write limit=Limit(rate="10/s")'),
        ("bind", "the handler takes its context as first parameter: (ctx: Context, …)"),
        ("queu", "you may mean queue"),
        ("max_attempt", "you may mean max_attempts"),
    ],
)
def test_an_unknown_option_of_a_task_is_told_what_to_write(app, option, instead):
    for wrong in (app.task, Registry, lambda **options: Perdure("memory://", **options)):
        with pytest.raises(InvalidCall) as caught:
            wrong(**{option: 5})
        assert f"has no option {option!r}; {instead}" in str(caught.value)
        assert "it knows" in str(caught.value)


def test_an_unknown_option_of_a_call_is_told_what_to_write(send):
    with pytest.raises(InvalidCall, match=r"has no option 'countdown'; the option is named delay; it knows"):
        send.using(countdown=5)
    with pytest.raises(
        InvalidCall, match=r"has no option 'lease'; lease is an option of the task: @app\.task\(lease=…\)"
    ):
        send.using(lease=5)
    with pytest.raises(InvalidCall, match=r"has no option 'priorty'; you may mean priority"):
        send.using(priorty=5)
    with pytest.raises(InvalidCall, match=r"has no option 'colour'; it knows"):
        send.using(colour=5)


def test_a_class_is_no_task(app):
    class Send:
        def __init__(self, to: str) -> None: ...

    for wrong in (app.task, app.task(name="send"), app.batch_task(size=2)):
        with pytest.raises(InvalidCall) as caught:
            wrong(Send)
        assert str(caught.value) == (
            "a task is made of a function, and Send is a class; decorate a function, or register a method of an "
            'object: app.task(name="send")(Send(…).method)'
        )
    assert app.definitions() == {}


def test_an_option_in_place_of_the_handler_is_told(app):
    with pytest.raises(
        InvalidCall, match=r'a task is made of a function, not of str; options go by name: @app\.task\(name="mail"\)'
    ):
        app.task("mail")


async def test_a_blocking_form_in_a_running_loop_warns(app, send):
    with pytest.warns(RuntimeWarning) as warned:
        send.sync.enqueue("a")
    assert str(warned[0].message) == (
        ".sync.enqueue(…) blocks the event loop that runs here until it is done: no other task of it goes on; "
        "await the verb without .sync"
    )
    assert warned[0].filename == __file__
    with pytest.warns(RuntimeWarning, match=r"\.sync\.find\(…\) blocks the event loop"):
        app.jobs.sync.find()
    with pytest.warns(RuntimeWarning, match=r"\.sync\.claim\(…\) blocks the event loop"), app.sync.claim(tasks=[send]):
        pass
    with pytest.warns(RuntimeWarning, match=r"with app\.sync blocks the event loop"), app.sync:
        pass


async def test_a_blocking_form_in_a_thread_does_not_warn(app, send):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job = await asyncio.to_thread(send.sync.enqueue, "a")
    assert await app.jobs.get(job.id) is not None


async def test_what_cannot_be_enqueued_is_told_what_to_write(app, send):
    def function(): ...

    takes = "app.enqueue takes task.call(…), a list of such calls, a flow or a graph"
    for work, words in [
        (send, "not Task; write app.enqueue(send.call(…)) or send.enqueue(…)"),
        (function, "not function; make a task of the function first, with @app.task above it"),
        (send.enqueue("a"), "not coroutine; what task.enqueue(…) gives is awaited by itself: await task.enqueue(…)"),
        (5, "not int"),
    ]:
        with pytest.raises(InvalidCall) as caught:
            await app.enqueue(work)
        assert str(caught.value) == f"{takes}, {words}"
    with pytest.raises(InvalidCall, match=r"app\.enqueue takes one thing; bind arguments by task\.call"):
        await app.enqueue(send, "a")
    assert await app.jobs.count() == 0


def test_arguments_beside_a_task_are_told_in_the_blocking_form(app, send):
    with pytest.raises(InvalidCall, match=r"app\.enqueue takes one thing; bind arguments by task\.call"):
        app.sync.enqueue(send, "a")


async def test_a_job_that_nobody_has_begun_says_so(app, send):
    job = await send.enqueue("a")
    with pytest.raises(ResultTimeout, match=r"is ready after 0.01 s; no worker has begun it yet; it stays on record"):
        await job.result(timeout=0.01)
