"""Workers that race for the same jobs, a zombie among them, and callers who enqueue in transactions of their own."""

from __future__ import annotations

import signal

import pytest

from tests.support.waiting import wait_until

from ..crashes.conftest import SCHEMES
from ..crashes.killer import Fleet, unfinished
from ..crashes.nursery import Child, Nursery
from ..crashes.recording import Scene


def test_two_workers_never_both_hold_a_job(nursery: Nursery, prepared: Scene, chance):
    arguments = dict(url=prepared.url, history=prepared.history)
    fleet = Fleet(nursery, prepared, size=2, concurrency=8)
    calls = [["plain", {}, {}], ["threaded", {}, {}], ["written", {}, {}]] * 60
    enqueue = dict(**arguments, calls=calls, lease=60)  # no lease ends here, however busy the machine is
    nursery.start("put", prepared.output("put"), **enqueue).finish()
    wait_until(lambda: unfinished(prepared) == 0)
    fleet.dismiss()
    history = prepared.judge()
    assert len(history.rows) == (180 if prepared.database.writes_effects else 120)
    plain = [row for row in history.rows if row["task"] != "written"]
    assert {(row["state"], row["attempt"]) for row in plain} == {("succeeded", 1)}


def test_a_zombies_word_is_refused(nursery: Nursery, prepared: Scene):
    """A worker is stopped for longer than its lease; another takes its jobs; then it wakes up and speaks."""
    gate = prepared.folder / "gate"
    arguments = dict(url=prepared.url, history=prepared.history, gate=str(gate))

    def begun(attempt: int) -> set[str]:
        return {event["id"] for event in prepared.events("began") if event["attempt"] == attempt}

    def second_hold_stands() -> bool:
        return all(row["attempt"] == 2 and row["state"] == "running" for row in prepared.rows())

    zombie = nursery.start("stubborn_work", prepared.output("first"), name="first", **arguments)
    wait_until(lambda: len(begun(1)) == 3)
    wait_until(lambda: _stopped(zombie, prepared))
    heirs = [
        nursery.start("stubborn_work", prepared.output(name), name=name, **arguments)
        for name in ("second", "third", "fourth")  # one each: what was lost together runs alone
    ]
    wait_until(lambda: len(begun(2)) == 3)
    zombie.send(signal.SIGCONT)
    wait_until(lambda: len(prepared.events("lost")) == 2)
    lost = {(event["attempt"], event["reason"]) for event in prepared.events("lost")}
    assert lost == {(1, "taken_by_another_worker")}
    zombie.send(signal.SIGTERM)
    zombie.finish()
    assert second_hold_stands()
    gate.touch()
    wait_until(lambda: unfinished(prepared) == 0)
    for heir in heirs:
        heir.send(signal.SIGTERM)
    for heir in heirs:
        heir.finish()
    history = prepared.judge()
    assert {(row["state"], row["result"]) for row in history.rows} == {("succeeded", '{"attempt":2}')}
    assert [effect["attempt"] for effect in history.effects] == ([2] if prepared.database.writes_by_thread else [])


def _stopped(worker: Child, scene: Scene) -> bool:
    """Stopped, but not in the middle of a write: a file of SQLite would be locked until it goes on."""
    worker.stop()
    if not scene.database.locked_by([worker.pid]):
        return True
    worker.send(signal.SIGCONT)
    return False


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme not in ("valkey", "redis")])
def test_jobs_of_callers_transactions_run_if_and_only_if_they_were_committed(nursery: Nursery, prepared: Scene, chance):
    arguments = dict(url=prepared.url, history=prepared.history)
    fleet = Fleet(nursery, prepared, size=2)
    callers = [
        nursery.start("caller", prepared.output(f"caller-{number}"), **arguments, seed=chance.getrandbits(32), count=25)
        for number in range(3)
    ]
    for caller in callers:
        caller.finish()
    wait_until(lambda: unfinished(prepared) == 0)
    fleet.dismiss()
    history = prepared.judge()
    orders = {row["job"] for row in prepared.rows("orders")}
    assert orders == history.ids("acknowledged") == {row["id"] for row in history.rows}
    assert history.ids("rolled_back")
