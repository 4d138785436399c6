"""`perdure promote`."""

import json
import signal
import sqlite3
import sys

import pytest

from perdure.cli import progress as bars

WHERE = "sqlite:///there.db"


def test_everything_is_moved(shop):
    shop.fill(work=True)
    before = shop.json("jobs", "list")["jobs"]
    done = shop.perdure("promote", shop.url, WHERE)
    assert done.exit_code == 0, done.output
    assert "carrying jobs" in done.stderr
    assert "do not resume the source" in done.stdout
    assert "equal" in done.stdout
    assert shop.json("jobs", "list", "--url", WHERE)["jobs"] == before
    assert all(queue["paused"] for queue in shop.json("queues", "list")["queues"])
    assert not any(queue["paused"] for queue in shop.json("queues", "list", "--url", WHERE)["queues"])


def test_the_jobs_run_where_they_are_now(shop):
    shop.enqueue("add", 1, 2)
    shop.json("promote", shop.url, WHERE)
    (shop.folder / "shop.py").write_text(shop.source.replace(repr(shop.url), repr(WHERE)))
    worker = shop.process("worker", "shop:app")
    try:
        while (counts := shop.json("jobs", "count", "--by-state", "--url", WHERE))["states"]["succeeded"] != 1:
            assert worker.poll() is None, counts
    finally:
        worker.kill()
        worker.communicate()


def test_json(shop):
    ids = shop.fill()
    moved = shop.json("promote", shop.url, WHERE)
    assert moved["equal"] is True
    assert moved["target"] == WHERE
    assert moved["things"]["jobs"]["count"] == len(ids)
    assert moved["things"]["jobs"]["by_state"] == {"ready": 3, "scheduled": 1}
    assert moved["things"]["jobs"]["by_queue"] == {"default": 2, "mail": 2}
    assert int(moved["things"]["jobs"]["checksum"], 16) > 0
    assert list(moved["things"]) == ["queues", "jobs", "kept_keys", "kv"]
    again = shop.json("promote", shop.url, WHERE)
    assert again["already_there"] == 4
    assert again["things"] == moved["things"]


def test_a_dry_run_makes_nothing(shop):
    shop.fill()
    planned = shop.json("promote", shop.url, WHERE, "--dry-run")
    assert planned["hindrances"] == []
    assert planned["things"]["jobs"]["count"] == 4
    assert not (shop.folder / "there.db").exists()
    assert not any(queue["paused"] for queue in shop.json("queues", "list")["queues"])
    assert "nothing was written" in shop.perdure("promote", shop.url, WHERE, "--dry-run").stdout


def test_a_dry_run_says_what_is_in_the_way(shop):
    shop.fill()
    shop.perdure("promote", shop.url, WHERE)
    shop.enqueue("add", 1, 2)
    done = shop.perdure("promote", WHERE, shop.url, "--dry-run")
    assert done.exit_code == 1
    assert "in the way: the target holds jobs of its own" in done.stdout


def test_a_target_of_somebody_else(shop):
    shop.fill()
    shop.perdure("promote", shop.url, WHERE)
    shop.enqueue("add", 1, 2)
    done = shop.perdure("promote", WHERE, shop.url)
    assert done.exit_code == 1
    assert "jobs of its own" in done.stderr


@pytest.mark.parametrize(
    ("source", "target", "code", "told"),
    [
        ("shop.db", WHERE, 1, "begins with a scheme"),
        ("sqlite:///shop.db", "postgress://localhost/x", 1, "did you mean postgres"),
        ("memory://", WHERE, 2, "SRC is memory://, which lives in one process only"),
        ("sqlite:///shop.db", "memory://", 2, "DST is memory://"),
        ("sqlite:///shop.db", "sqlite:///:memory:", 2, "DST is sqlite:///:memory:"),
        ("sqlite:///shop.db", "sqlite:///../{folder}/shop.db", 2, "SRC and DST are the same store"),
        ("sqlite:///none.db", WHERE, 1, "none.db does not exist"),
        ("sqlite:///shop.db", "sqlite:///no/such/folder/x.db", 1, "folder"),
        ("sqlite:///shop.db", "postgresql://nobody@127.0.0.1:1/shop", 1, "127.0.0.1:1"),
        ("sqlite:///shop.db", "redis://127.0.0.1:1/0", 1, "127.0.0.1:1"),
    ],
)
def test_bad_addresses(shop, source, target, code, told):
    shop.fill()
    done = shop.perdure("promote", source, target.format(folder=shop.folder.name))
    assert done.exit_code == code, done.output
    assert told in done.stderr
    assert not any(queue["paused"] for queue in shop.json("queues", "list")["queues"])


def test_one_file_under_two_names(shop):
    shop.fill()
    (shop.folder / "other.db").symlink_to(shop.folder / "shop.db")
    done = shop.perdure("promote", shop.url, "sqlite:///other.db")
    assert done.exit_code == 2
    assert "the same store" in done.stderr


def test_a_target_with_a_newer_schema(shop):
    shop.fill()
    shop.perdure("migrate", "--url", WHERE)
    with sqlite3.connect(shop.folder / "there.db") as connection:
        connection.execute("UPDATE perdure_meta SET value = '99' WHERE name = 'schema'")
    connection.close()
    for options in ([], ["--dry-run"]):
        done = shop.perdure("promote", shop.url, WHERE, *options)
        assert done.exit_code == 1
        assert "newer Perdure; upgrade" in done.stderr


def test_a_live_worker_is_refused_and_waited_for(shop):
    shop.fill()
    worker = shop.process("worker", "shop:app")
    try:
        while not shop.json("workers")["workers"]:
            assert worker.poll() is None
        refused = shop.perdure("promote", shop.url, WHERE)
        assert refused.exit_code == 1
        assert "the source is in use: a live worker" in refused.stderr
        assert not any(queue["paused"] for queue in shop.json("queues", "list")["queues"])
        moving = shop.process("promote", shop.url, WHERE, "--wait", "30", "--json")
        while not all(queue["paused"] for queue in shop.json("queues", "list")["queues"]):
            assert moving.poll() is None, moving.communicate()
        worker.terminate()
        out, err = moving.communicate(timeout=30)
    finally:
        worker.kill()
        worker.communicate()
    assert moving.returncode == 0, err
    assert json.loads(out)["things"]["jobs"]["count"] == 4


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_given_up(shop, word):
    """Ctrl-C and a polite kill let the source go on."""
    shop.fill()
    shop.perdure("queues", "pause", "default")
    worker = shop.process("worker", "shop:app", "--queues", "none")
    try:
        while not shop.json("workers")["workers"]:
            assert worker.poll() is None
        moving = shop.process("promote", shop.url, WHERE, "--wait", "60")
        while not all(queue["paused"] for queue in shop.json("queues", "list")["queues"]):
            assert moving.poll() is None, moving.communicate()
        moving.send_signal(word)
        _, err = moving.communicate(timeout=30)
    finally:
        worker.kill()
        worker.communicate()
    assert moving.returncode == 1
    assert f"perdure: given up: {shop.url} goes on as before" in err
    paused = {queue["name"]: queue["paused"] for queue in shop.json("queues", "list")["queues"]}
    assert paused == {"default": True, "mail": False}


def test_wrong_use(shop):
    assert shop.perdure("promote", shop.url).exit_code == 2
    assert shop.perdure("promote", shop.url, WHERE, "--wait", "-1").exit_code == 2
    assert "Examples:" in shop.perdure("promote", "--help").output


# ---- progress --------------------------------------------------------------------------------------
class Screen:
    def __init__(self, *, terminal):
        self.text = ""
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("terminal", [False, True])
def test_a_plain_bar(monkeypatch, terminal):
    screen = Screen(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(bars, "find_spec", lambda name: None)
    monkeypatch.setattr(bars, "AT_MOST_EVERY", 0.0)
    with bars.progress(False) as told:
        told("carrying jobs", 50, 100)
        told("carrying jobs", 100, 100)
        told("waiting", 0, 0)
        told("carrying keys", 3, 0)
    assert screen.text.endswith("carrying keys [##############################] 3 of 3\n")
    assert ("carrying jobs [###############...............] 50 of 100" in screen.text) is terminal
    assert "carrying jobs [##############################] 100 of 100\n" in screen.text
    assert "waiting\n" in screen.text


def test_nothing_is_shown_to_programs(monkeypatch):
    screen = Screen(terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with bars.progress(True) as told:
        told("carrying jobs", 1, 2)
    assert screen.text == ""


def test_the_bar_of_rich(monkeypatch):
    pytest.importorskip("rich")
    screen = Screen(terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with bars.progress(False) as told:
        told("carrying jobs", 100, 100)
    assert "carrying jobs" in screen.text
    assert "100%" in screen.text
