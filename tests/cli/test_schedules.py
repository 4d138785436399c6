"""`perdure schedules`."""

import asyncio
from datetime import UTC, datetime

import pytest


@pytest.fixture
def planned(shop):
    async def put():
        async with shop.app as app:
            await app.schedules.put("nightly", "0 3 * * *", shop.names["add"].call(1, 2), timezone="Europe/Berlin")
            await app.schedules.put("over", "@daily", shop.names["broken"].call(), end=datetime(2020, 1, 1, tzinfo=UTC))

    asyncio.run(put())
    return shop


def test_list_and_show(planned):
    nightly, over = planned.json("schedules", "list")["schedules"]
    assert (nightly["name"], nightly["cron"], nightly["task"], nightly["runs"]) == ("nightly", "0 3 * * *", "add", 0)
    assert nightly["next_at"].endswith("Z")
    assert (over["name"], over["next_at"]) == ("over", None)
    head, first, second = planned.perdure("schedules", "list").output.splitlines()
    assert head.split() == ["NAME", "STATE", "NEXT", "LAST", "RUNS", "TASK", "CRON"]
    assert first.split()[:2] == ["nightly", "open"]
    assert second.split()[:2] == ["over", "over"]
    assert planned.json("schedules", "show", "nightly") == nightly
    assert "Europe/Berlin" in planned.perdure("schedules", "show", "nightly").output


def test_pause_resume_and_preview(planned):
    assert planned.json("schedules", "pause", "nightly") == {"schedule": "nightly", "paused": True}
    assert planned.perdure("schedules", "list").output.splitlines()[1].split()[:2] == ["nightly", "paused"]
    assert planned.perdure("schedules", "resume", "nightly").output == "resumed: nightly\n"
    ticks = planned.perdure("schedules", "preview", "nightly", "--count", "3").output.splitlines()
    assert len(ticks) == 3
    assert {tick[10:] for tick in ticks} <= {"T01:00:00Z", "T02:00:00Z"}
    assert [tick[:19] for tick in planned.json("schedules", "preview", "nightly")["ticks"]][:3] == [
        t[:19] for t in ticks
    ]


def test_run_now(planned):
    done = planned.json("schedules", "run-now", "nightly")
    assert (done["schedule"], done["duplicate"]) == ("nightly", False)
    job = planned.json("jobs", "get", done["job"])
    assert (job["task"], job["payload"], job["meta"]) == ("add", {"a": 1, "b": 2}, {"schedule": "nightly"})
    assert planned.perdure("schedules", "run-now", "nightly").output.startswith("enqueued: ")


def test_remove(planned):
    assert planned.perdure("schedules", "remove", "nightly").exit_code == 2  # nobody is there to answer
    assert planned.json("schedules", "remove", "nightly", "--yes") == {"schedule": "nightly", "removed": True}
    assert [schedule["name"] for schedule in planned.json("schedules", "list")["schedules"]] == ["over"]


def test_an_unknown_name(planned):
    for verb in ("show", "pause", "resume", "run-now", "preview", "remove"):
        done = planned.perdure("schedules", verb, "other")
        assert done.exit_code == 1
        assert "there is no schedule 'other'; `perdure schedules list` shows those there are" in done.output
