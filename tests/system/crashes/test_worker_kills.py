"""kill -9 of workers in the middle of their work: nothing is lost, nothing is done twice that must be done once."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.support.addresses import OF_EACH_KIND
from tests.support.waiting import wait_until

from .conftest import FILES
from .killer import Fleet, campaign, unfinished
from .nursery import Nursery
from .recording import Scene


def _drained(scene: Scene, fleet: Fleet, within: float) -> None:
    def done() -> bool:
        fleet.replace_the_dead()
        return unfinished(scene) == 0

    wait_until(done, within, lambda: f"{unfinished(scene)} jobs are left")


def _expected(history, scene: Scene) -> None:
    """What each kind of job came to, whatever was killed on the way."""
    begun = Counter(event["id"] for event in history.of_kind("began"))
    for row in history.rows:
        match row["task"]:
            case "hopeless":
                assert (row["state"], row["failures"]) == ("dead", 2), row
            case "gives_up":
                assert (row["state"], row["failures"]) == ("dead", 1), row
            case "fails_once":
                assert (row["state"], row["failures"]) == ("succeeded", 1), row
            case "written" | "written_by_thread":
                assert row["state"] == "succeeded", row
            case _:
                assert (row["state"], row["failures"]) == ("succeeded", 0), row
        assert begun[row["id"]] >= 1, row
    written = {effect["job"] for effect in history.effects}
    assert written == {row["id"] for row in history.rows if row["task"].startswith("written")}


# watched: a trigger writes every move of every row down, and takes the store off its shortest way
@pytest.mark.parametrize(
    ("scheme", "watch"),
    [("sqlite", True), ("sqlite", False), (FILES[-1], False), *((kind, True) for kind in OF_EACH_KIND)],
    ids=["watched", "plain", "last", *OF_EACH_KIND],
)
@pytest.mark.parametrize(
    ("kills", "jobs"), [(8, 120), pytest.param(200, 4000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_killed_workers_lose_nothing(nursery: Nursery, scene: Scene, chance, kills, jobs, watch):
    if jobs > 120:
        kills = int(os.environ.get("PERDURE_KILLS") or kills)
        jobs = 20 * kills
    prepare = nursery.start("prepare", scene.output("prepare"), url=scene.url, history=scene.history, watch=watch)
    prepare.finish()
    nursery.start(
        "enqueue", scene.output("enqueue"),
        url=scene.url, history=scene.history, seed=chance.getrandbits(32), count=jobs,
    ).finish()  # fmt: skip
    fleet = Fleet(nursery, scene, size=2)
    campaign(fleet, scene, chance, kills, within=8 if jobs == 120 else 3 * kills)
    _drained(scene, fleet, within=60 + jobs / 10)
    fleet.dismiss()
    history = scene.judge()
    print(f"{fleet.kills} kills, {len(history.rows)} jobs, {len(history.of_kind('began'))} attempts begun")
    _expected(history, scene)
    assert fleet.kills >= min(kills, 3)


@pytest.mark.parametrize("scheme", FILES[-1:])
def test_poison_dies_after_three_losses_and_its_neighbours_succeed(nursery: Nursery, scene: Scene):
    arguments = dict(url=scene.url, history=scene.history)
    nursery.start("prepare", scene.output("prepare"), **arguments, watch=True).finish()
    neighbours = [["plain", {"seconds": 0.05}, {}], ["threaded", {"seconds": 0.05}, {}], ["written", {}, {}]]
    calls = [*neighbours * 3, ["poison", {"how": "kill"}, {}], *neighbours * 3]
    nursery.start("put", scene.output("put"), **arguments, calls=calls).finish()
    fleet = Fleet(nursery, scene, size=1, concurrency=6)
    _drained(scene, fleet, within=60)
    fleet.dismiss()
    history = scene.judge()
    (poison,) = [row for row in history.rows if row["task"] == "poison"]
    assert (poison["state"], poison["losses"], poison["failures"]) == ("dead", 3, 0)
    assert "poison" in poison["reason"]
    assert {row["state"] for row in history.rows if row["task"] != "poison"} == {"succeeded"}
    assert [row["losses"] for row in history.rows if row["task"] != "poison"] == [0] * 18
