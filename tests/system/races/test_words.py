"""Words about one job from several sides at once: exactly one takes hold, and everybody hears the truth about it."""

from __future__ import annotations

import json

import pytest

from tests.support.waiting import wait_until

from ..crashes.nursery import Nursery
from ..crashes.recording import Scene


def _claimed(nursery: Nursery, scene: Scene, **options) -> list:
    child = nursery.start(
        "claim_some", scene.output("claim"), url=scene.url, history=scene.history, count=40, **options
    )
    child.finish()
    return json.loads(child.said().splitlines()[-1])


def _said_at_once(nursery: Nursery, scene: Scene, holds: list, *words: str) -> list[list[int]]:
    gate = scene.folder / "gate"
    children = [
        nursery.start(
            "say", scene.output(f"say-{number}"),
            url=scene.url, history=scene.history, gate=str(gate), word=word, holds=holds,
        )
        for number, word in enumerate(words)
    ]  # fmt: skip
    wait_until(lambda: all("at the gate" in child.said() or child.code is not None for child in children))
    gate.touch()
    for child in children:
        child.finish()
    return [json.loads(child.said().splitlines()[-1]) for child in children]


@pytest.mark.parametrize("cancel", ["cancel", "stale cancel"])
def test_cancel_against_finish_against_reap(nursery: Nursery, prepared: Scene, cancel):
    holds = _claimed(nursery, prepared, lease=0.05)
    words = ("finish", cancel, "reap", "reap")
    finished, cancelled, *_ = _said_at_once(nursery, prepared, holds, *words)
    history = prepared.judge(drained=False)
    states = {row["id"]: row["state"] for row in history.rows}
    for (id, _, _), done, undone in zip(holds, finished, cancelled, strict=True):
        assert done + undone <= 1
        assert states[id] == ("succeeded" if done else "cancelled" if undone else "ready")
    assert "running" not in states.values()


@pytest.mark.parametrize("retry", ["retry", "stale retry"])
def test_a_dead_letter_is_retried_once_from_two_sides(nursery: Nursery, prepared: Scene, retry):
    holds = _claimed(nursery, prepared, lease=60, dead=True)
    for id, _, _ in holds:
        prepared.record("retried", id)
    sides = _said_at_once(nursery, prepared, holds, *[retry] * 3)
    history = prepared.judge(drained=False)
    assert [sum(answers) for answers in zip(*sides, strict=True)] == [1] * len(holds)
    assert {(row["state"], row["failures"], row["version"]) for row in history.rows} == {("ready", 0, 4)}


JOBS = 1_500  # more than three claimers take before a pause is written


def test_no_job_is_claimed_after_pause_has_returned(nursery: Nursery, prepared: Scene):
    arguments = dict(url=prepared.url, history=prepared.history)
    enqueue = dict(**arguments, calls=[["plain", {}, {}]] * JOBS)
    nursery.start("put", prepared.output("put"), **enqueue).finish()
    claimers = [
        nursery.start("claim_on", prepared.output(f"claimer-{number}"), **arguments, name=f"claimer-{number}")
        for number in range(3)
    ]
    pauser = nursery.start("pause", prepared.output("pause"), **arguments, after=30)
    pauser.finish()
    for claimer in claimers:
        claimer.kill()
    *running, ready = json.loads(pauser.said().splitlines()[-1])
    assert len(set(running)) == 1
    assert running[0] + ready == JOBS
    assert ready > 0
    prepared.judge(drained=False)
