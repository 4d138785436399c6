"""`@app.schedule(…)` and `app.schedule(cron, call, name=…)`: names, doubles, and what is refused. No store is needed."""

from __future__ import annotations

import pytest

from perdure import InvalidCall, Perdure, Registry

from .conftest import NOON


def test_names_of_declared_schedules():
    app, billing = Perdure("memory://"), Registry(prefix="billing.")

    @billing.schedule("@daily")
    @billing.schedule("@hourly", name="often")
    @billing.task
    async def charge(cents: int = 5) -> None: ...

    billing.schedule("@weekly", charge.using(queue="slow").call(7), name="weekly")
    app.include(billing, prefix="x.")
    schedules = app._runtime.declared_schedules()
    assert set(schedules) == {"x.billing.charge", "x.billing.often", "x.billing.weekly"}
    assert {schedule.job.task for schedule in schedules.values()} == {"x.billing.charge"}
    assert (schedules["x.billing.weekly"].job.queue, schedules["x.billing.weekly"].job.payload) == (
        "slow",
        '{"cents":7}',
    )


def test_two_of_one_name():
    app = Perdure("memory://")

    @app.schedule("@daily")
    @app.task
    async def one() -> None: ...

    with pytest.raises(InvalidCall, match="two schedules are named 'one'"):
        app.schedule("@hourly")(one)
    with pytest.raises(InvalidCall, match="two schedules are named 'one'"):
        app.schedule("@weekly", one.call(), name="one")
    app.schedule("@daily")(one)  # the same again

    other = Registry()

    @other.schedule("@daily", name="one")
    @other.task
    async def two() -> None: ...

    app.include(other)
    with pytest.raises(InvalidCall, match="two schedules are named 'one'"):
        app._runtime.declared_schedules()


def test_code_that_is_loaded_anew():
    app = Perdure("memory://")
    for cron in ("@daily", "@hourly"):

        @app.schedule(cron)
        @app.task
        async def again() -> None: ...

    assert app._runtime.declared_schedules()["again"].cron == "@hourly"


def test_what_cannot_be_declared():
    app = Perdure("memory://")

    @app.task
    async def needs(number: int) -> None: ...

    @app.task
    async def plain() -> None: ...

    for said, match in [
        (lambda: app.schedule("@daily")(needs), "number"),  # type: ignore[type-var]
        (lambda: app.schedule("@daily")(lambda: None), "on top of a task"),  # type: ignore[type-var]
        (lambda: app.schedule("@daily", plain.call()), "needs a name"),  # type: ignore[call-overload]
        (lambda: app.schedule("@daily", plain, name="x"), r"plain.call\(…\)"),  # type: ignore[call-overload]
        (lambda: app.schedule("@daily", 5, name="x"), "takes a call"),  # type: ignore[call-overload]
        (lambda: app.schedule("@daily", plain.using(at=NOON).call(), name="x"), "at= cannot recur"),
        (lambda: app.schedule("@daily", plain.using(connection=1).call(), name="x"), "connection= cannot recur"),
        (lambda: app.schedule("@daily", name="")(plain), "must not be empty"),
        (lambda: app.schedule(5)(plain), "cron is a text"),  # type: ignore[call-overload]
    ]:
        with pytest.raises(InvalidCall, match=match):
            said()
    assert app._runtime.declared_schedules() == {}
