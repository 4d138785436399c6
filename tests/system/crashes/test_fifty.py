"""Fifty processes on one file at once, or twelve on one server: each enqueues and claims, nobody is turned away, and every
job is claimed once."""

from __future__ import annotations

import json
from collections import Counter

from .nursery import Nursery
from .recording import Scene

PROCESSES = {"sqlite": 50, "sqlite+apsw": 50}
ON_A_SERVER = 12
JOBS = 20


def test_many_processes_on_one_store(nursery: Nursery, scene: Scene):
    processes = PROCESSES.get(scene.scheme, ON_A_SERVER)
    total = processes * JOBS
    nursery.start("prepare", scene.output("prepare"), url=scene.url, history=scene.history).finish()
    children = [
        nursery.start(
            "share", scene.output(f"share-{number}"),
            url=scene.url, history=scene.history, name=f"process-{number}", jobs=JOBS, total=total,
        )
        for number in range(processes)
    ]  # fmt: skip
    for child in children:
        child.finish()
        assert "locked" not in child.said()
    claimed = Counter(id for child in children for id in json.loads(child.said().splitlines()[-1]))
    history = scene.judge()
    acknowledged = history.ids("acknowledged")
    assert len(acknowledged) == total
    assert claimed == dict.fromkeys(acknowledged, 1)
    assert {(row["state"], row["attempt"], row["version"]) for row in history.rows} == {("succeeded", 1, 3)}
