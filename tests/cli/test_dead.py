"""`perdure dead`."""

import json


def test_list(shop):
    ids = shop.fill(work=True)
    document = shop.json("dead", "list")
    assert [job["id"] for job in document["jobs"]] == [ids["broken"]]
    assert document["cursor"] is None
    assert ids["broken"] in shop.perdure("dead", "list", "--task", "broken").output
    assert shop.perdure("dead", "list", "--task", "add").output == "no dead letters\n"


def test_the_list_says_what_went_wrong_last(shop):
    shop.fill(work=True)
    (line,) = shop.perdure("dead", "list").output.splitlines()[1:]
    assert line.endswith(r"failed 2 of 2 attempts; last: RuntimeError: this never works \x1b[31m")


def test_retry(shop):
    ids = shop.fill(work=True)
    assert shop.json("dead", "retry", ids["broken"]) == {"asked": 1, "retried": 1}
    assert shop.json("jobs", "get", ids["broken"])["state"] == "ready"
    again = shop.perdure("dead", "retry", ids["broken"])
    assert again.exit_code == 1
    assert again.output.startswith("retried: 0 of 1")


def test_retry_all_asks(shop):
    shop.fill(work=True)
    refused = shop.perdure("dead", "retry-all")
    assert refused.exit_code == 2
    assert "Retry 1 dead letter?" in refused.output
    assert shop.json("dead", "retry-all", "--task", "add", "--yes") == {"retried": 0}
    assert shop.json("dead", "retry-all", "--yes") == {"retried": 1}


def test_purge_needs_a_filter_and_asks(shop):
    shop.fill(work=True)
    assert shop.perdure("dead", "purge", "--yes").exit_code == 2
    assert shop.perdure("dead", "purge", "--task", "broken").exit_code == 2
    assert shop.json("dead", "list")["jobs"]
    assert shop.json("dead", "purge", "--before", "0s", "--yes") == {"purged": 1, "refused": 0}
    assert shop.json("dead", "list")["jobs"] == []


def test_purge_deletes_what_it_may_and_tells_what_it_refused(shop):
    shop.fill(work=True)
    (job,) = shop.json("dead", "list")["jobs"]
    shop.names["add"].using(after=[job["id"]]).sync.enqueue(1, 2)
    shop.app.sync.close()
    done = shop.perdure("dead", "purge", "--task", "broken", "--yes")
    assert done.exit_code == 1
    assert "purged: 0 dead letters\nnot deleted: 1 dead letter that jobs wait for; --cascade deletes" in done.stdout
    done = shop.perdure("dead", "purge", "--task", "broken", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"purged": 0, "refused": 1})
    assert shop.json("dead", "purge", "--task", "broken", "--yes", "--cascade") == {"purged": 2, "refused": 0}


def test_nobody_is_asked_about_nothing(shop):
    shop.fill()
    assert shop.json("dead", "purge", "--task", "broken") == {"purged": 0, "refused": 0}
    assert shop.json("dead", "retry-all") == {"retried": 0}
    assert shop.json("jobs", "cancel", "--task", "slow") == {"asked": None, "cancelled": 0}


def test_export(shop):
    ids = shop.fill(work=True)
    path = shop.folder / "letters.jsonl"
    assert shop.json("dead", "export", str(path)) == {"exported": 1, "path": str(path)}
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["id"] == ids["broken"]
