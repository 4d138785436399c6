"""`perdure queues` and `perdure workers`."""

import asyncio

import pytest

from perdure import __version__


def test_list(shop):
    shop.fill()
    queues = shop.json("queues", "list")["queues"]
    assert [(queue["name"], queue["paused"], queue["depth"]) for queue in queues] == [
        ("default", False, 2),
        ("mail", False, 2),
    ]
    assert all(0 < queue["oldest"] < 60 for queue in queues)
    lines = shop.perdure("queues", "list").output.splitlines()
    assert lines[0].split() == ["QUEUE", "STATE", "DEPTH", "OLDEST", "SETTINGS"]
    assert lines[2].split()[:3] == ["mail", "open", "2"]


def test_without_a_subcommand_it_lists(shop):
    shop.fill()
    assert shop.json("queues")["queues"][0]["name"] == "default"
    for things in ("jobs", "dead", "queues", "schedules", "workers"):
        assert shop.json(things).keys() == shop.json(things, "list").keys()
        assert shop.perdure(things).output.splitlines()[0] == shop.perdure(things, "list").output.splitlines()[0]
        assert "list" in shop.perdure(things, "--help").output


def test_the_hint_for_scalers(shop):
    shop.fill()
    told = shop.json("queues", "--target", "30")
    assert (told["target"], told["workers"], told["alive"]) == (30.0, 2, 0)
    assert [(queue["name"], queue["ready"], queue["workers"]) for queue in told["queues"]] == [
        ("default", 2, 1),
        ("mail", 1, 1),
    ]
    lines = shop.perdure("queues", "list", "--target", "30").output.splitlines()
    assert lines[0].split() == ["QUEUE", "READY", "OLDEST", "RUNNING", "RATE", "WORKERS"]
    assert lines[-1] == "workers for all of them: 2, alive: 0"
    assert shop.perdure("queues", "--target", "0").exit_code == 2


def test_scripts_get_the_hint_unasked(shop):
    shop.fill()
    told = shop.json("queues")
    assert (told["target"], told["workers"], told["alive"]) == (60.0, 2, 0)
    assert {"depth", "oldest", "rate", "workers"} <= told["queues"][0].keys()


def test_pause_and_resume(shop):
    shop.fill()
    assert shop.json("queues", "pause", "mail") == {"queue": "mail", "paused": True}
    assert [queue["paused"] for queue in shop.json("queues", "list")["queues"]] == [False, True]
    assert shop.json("queues", "resume", "mail") == {"queue": "mail", "paused": False}
    assert [queue["paused"] for queue in shop.json("queues", "list")["queues"]] == [False, False]


def test_configure(shop):
    from perdure import QueueFull

    shop.fill()
    assert shop.json("queues", "configure", "default", "--max-depth", "2") == {
        "queue": "default", "max_depth": 2, "on_full": "reject", "drop_below": None, "fair": False, "weights": {},
    }  # fmt: skip
    with pytest.raises(QueueFull):
        shop.enqueue("add", 1, 2)


def test_configure_a_fair_queue(shop):
    shop.fill()
    asked = ("queues", "configure", "mail", "--fair", "--weight", "gold=2", "--weight", "trial=0.5")
    told = shop.json(*asked)
    assert (told["fair"], told["weights"]) == (True, {"gold": 2.0, "trial": 0.5})
    (default, mail) = [queue["settings"] for queue in shop.json("queues")["queues"]]
    assert (mail["fair"], mail["weights"]) == (True, {"gold": 2.0, "trial": 0.5})
    assert (default["fair"], default["max_depth"]) == (False, None)


def test_what_was_configured_is_listed(shop):
    shop.fill()
    bounds = ["--max-depth", "10", "--on-full", "drop", "--drop-below", "5"]
    assert shop.perdure("queues", "configure", "mail", *bounds, "--fair", "--weight", "acme=2").exit_code == 0
    assert shop.perdure("queues").output.endswith("at most 10, else drop below 5; fair acme=2\n")


@pytest.mark.parametrize("weight", ["gold", "gold=", "gold=heavy", "=2", "gold=0"])
def test_what_is_no_weight(shop, weight):
    shop.fill()
    assert shop.perdure("queues", "configure", "default", "--fair", "--weight", weight).exit_code == 2


def test_configure_refuses_nonsense(shop):
    shop.fill()
    assert shop.perdure("queues", "configure", "default", "--weight", "gold=2").exit_code == 2
    assert shop.perdure("queues", "configure", "default", "--max-depth", "0").exit_code == 2
    assert shop.perdure("queues", "configure", "default", "--on-full", "explode").exit_code == 2


def test_workers(shop):
    shop.fill()
    assert shop.json("workers") == {"workers": []}
    assert shop.perdure("workers").output == "no workers are alive\n"

    async def beside_a_worker():
        async with shop.app, shop.app.worker(name="anna"):
            return await asyncio.to_thread(shop.json, "workers"), await asyncio.to_thread(shop.perdure, "workers")

    document, text = asyncio.run(beside_a_worker())
    assert [worker["id"] for worker in document["workers"]] == ["anna"]
    assert document["workers"][0]["version"] == __version__
    assert "add" in document["workers"][0]["tasks"]
    assert text.output.splitlines()[1].split()[0] == "anna"
