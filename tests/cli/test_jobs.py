"""`perdure jobs`."""

import asyncio
import json
import re
import shlex

import pytest


def test_list(shop):
    ids = shop.fill()
    document = shop.json("jobs", "list")
    assert [job["id"] for job in document["jobs"]] == [ids[name] for name in ("broken", "later", "send", "add")]
    assert document["cursor"] is None
    job = document["jobs"][2]
    assert (job["task"], job["queue"], job["state"], job["payload"]) == ("send", "mail", "ready", {"to": "a@b.c"})
    assert (job["tenant"], job["key"], job["tags"]) == ("acme/main", "k", ["t"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", job["created_at"])
    text = shop.perdure("jobs", "list").output.splitlines()
    assert text[0].split() == ["ID", "STATE", "TASK", "QUEUE", "ATTEMPT", "AGE", "NOTE"]
    assert len(text) == 5
    assert text[3].split()[:5] == [ids["send"], "ready", "send", "mail", "0/2"]


def test_a_retried_dead_letter_has_its_whole_budget_again(shop):
    """The column counts failures since the last retry, the attempts go on."""
    ids = shop.fill()

    def shown():
        rows = [line.split() for line in shop.perdure("jobs", "list", "--task", "broken").output.splitlines()]
        return rows[1][1], rows[1][4]

    async def worked():
        async with shop.app, shop.app.worker(poll=0.05):
            async for _ in shop.names["broken"].handle(ids["broken"]).watch(timeout=20):
                pass

    assert shown() == ("ready", "0/2")
    asyncio.run(worked())
    assert shown() == ("dead", "2/2")
    shop.perdure("dead", "retry", ids["broken"])
    assert shown() == ("ready", "0/2")
    asyncio.run(worked())
    assert shown() == ("dead", "2/2")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--state", "scheduled"], {"later"}),
        (["--state", "ready,scheduled"], {"add", "send", "later", "broken"}),
        (["--state", "ready", "--state", "dead"], {"add", "send", "broken"}),
        (["--task", "send"], {"send", "later"}),
        (["--queue", "mail"], {"send", "later"}),
        (["--tenant", "acme"], {"send"}),
        (["--key", "k"], {"send"}),
        (["--tag", "t"], {"send"}),
        (["--routing-key", "vector"], {"later"}),
        (["--unrouted"], {"add", "send", "broken"}),
        (["--text", "A@B"], {"send"}),
        (["--since", "1h"], {"add", "send", "later", "broken"}),
        (["--before", "2020-01-01"], set()),
        (["--since", "2020-01-01T00:00:00+02:00", "--before", "1h"], set()),
    ],
)
def test_filters(shop, options, names):
    ids = shop.fill()
    found = {job["id"] for job in shop.json("jobs", "list", *options)["jobs"]}
    assert found == {ids[name] for name in names}
    assert shop.json("jobs", "count", *options) == {"count": len(names)}


@pytest.mark.parametrize(
    "options",
    [
        ["--state", "asleep"],
        ["--state", ""],
        ["--since", "yesterday"],
        ["--unrouted", "--routing-key", "x"],
        ["--limit", "0"],
        ["--cursor", "!"],
    ],
)
def test_wrong_filters(shop, options):
    shop.fill()
    done = shop.perdure("jobs", "list", *options)
    assert done.exit_code == 2, done.output


def test_pages(shop):
    ids = shop.fill()
    seen, cursor = [], None
    while True:
        page = shop.json("jobs", "list", "--limit", "3", *(["--cursor", cursor] if cursor else []))
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(ids.values())


def test_the_next_page_can_be_asked_for_as_it_is_told(shop):
    shop.fill()
    told = shop.perdure("jobs", "list", "--limit", "3").stderr
    options = shlex.split(told.removeprefix("more: "))
    assert len(shop.json("jobs", "list", "--limit", "3", *options)["jobs"]) == 1


def test_get(shop):
    ids = shop.fill(work=True)
    job = shop.json("jobs", "get", ids["broken"])
    assert (job["state"], job["failures"], len(job["errors"])) == ("dead", 2, 2)
    assert job["errors"][0]["kind"] == "RuntimeError"
    text = shop.perdure("jobs", "get", ids["broken"]).output
    assert "RuntimeError: this never works" in text
    assert "\x1b" not in text
    assert "result" in shop.perdure("jobs", "get", ids["add"]).output


@pytest.mark.parametrize("verb", ["get", "log", "wait"])
def test_a_job_that_is_not_there(shop, verb):
    shop.fill()
    done = shop.perdure("jobs", verb, "00000000-0000-7000-8000-000000000000")
    assert done.exit_code == 1
    assert "there is no job" in done.output


def test_an_id_that_is_none(shop):
    shop.fill()
    assert shop.perdure("jobs", "get", "seven").exit_code == 2


def test_count_by_state(shop):
    shop.fill(work=True)
    document = shop.json("jobs", "count", "--by-state")
    assert document["count"] == 4
    assert document["states"] == {
        "blocked": 0, "scheduled": 1, "ready": 0, "running": 0,
        "succeeded": 2, "skipped": 0, "dead": 1, "cancelled": 0,
    }  # fmt: skip
    assert shop.json("jobs", "count", "--by-state", "--state", "dead")["states"] == {"dead": 1}


def test_cancel(shop):
    ids = shop.fill()
    assert shop.json("jobs", "cancel", ids["add"], ids["later"]) == {"asked": 2, "cancelled": 2}
    assert shop.json("jobs", "get", ids["add"])["state"] == "cancelled"
    again = shop.perdure("jobs", "cancel", ids["add"])
    assert again.exit_code == 1
    assert "cancelled: 0 of 1" in again.output


def test_cancel_by_filter_asks(shop):
    ids = shop.fill()
    refused = shop.perdure("jobs", "cancel", "--task", "send")
    assert refused.exit_code == 2
    assert "Cancel 2 jobs?" in refused.output
    assert "--yes" in refused.output
    assert shop.json("jobs", "cancel", "--task", "send", "--yes") == {"asked": None, "cancelled": 2}
    assert shop.json("jobs", "get", ids["add"])["state"] == "ready"


@pytest.mark.parametrize("verb", ["cancel", "delete", "run-now"])
def test_ids_or_a_filter(shop, verb):
    ids = shop.fill()
    assert shop.perdure("jobs", verb, "--yes").exit_code == 2
    assert shop.perdure("jobs", verb, ids["add"], "--task", "add", "--yes").exit_code == 2


def test_run_now(shop):
    ids = shop.fill()
    assert shop.json("jobs", "run-now", ids["later"]) == {"asked": 1, "made_due": 1}
    assert shop.json("jobs", "get", ids["later"])["state"] == "ready"


def test_delete(shop):
    ids = shop.fill(work=True)
    assert shop.json("jobs", "delete", ids["add"]) == {"asked": 1, "deleted": 1}
    assert shop.json("jobs", "delete", "--state", "succeeded,dead", "--yes") == {"asked": None, "deleted": 2}
    assert [job["id"] for job in shop.json("jobs", "list")["jobs"]] == [ids["later"]]


def test_log(shop):
    ids = shop.fill(work=True)
    assert shop.json("jobs", "log", ids["send"]) == {"id": ids["send"], "lines": ["sent to a@b.c"]}
    assert shop.perdure("jobs", "log", ids["send"]).output == "sent to a@b.c\n"


def test_wait(shop):
    ids = shop.fill(work=True)
    assert shop.perdure("jobs", "wait", ids["add"]).output == "succeeded: 3\n"
    dead = shop.perdure("jobs", "wait", ids["broken"], "--json")
    assert dead.exit_code == 1
    assert json.loads(dead.stdout)["state"] == "dead"
    assert "; last: RuntimeError: this never works" in shop.perdure("jobs", "wait", ids["broken"]).output
    late = shop.perdure("jobs", "wait", ids["later"], "--timeout", "0.1")
    assert late.exit_code == 1
    assert "still scheduled" in late.output


def test_the_attempt_column_shows_failures_of_max_attempts(shop):
    """A job that was handed back, snoozed or succeeded has not used up its attempts."""
    ids = shop.fill(work=True)
    columns = {line.split()[0]: line.split()[4] for line in shop.perdure("jobs", "list").output.splitlines()[1:]}
    assert (columns[ids["add"]], columns[ids["broken"]]) == ("0/2", "2/2")
    dead = shop.perdure("dead", "list").output.splitlines()
    assert [line.split()[4] for line in dead if ids["broken"] in line] == ["2/2"]
    shown = shop.perdure("jobs", "get", ids["broken"]).output
    assert "2/2" in shown
