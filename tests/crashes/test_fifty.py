"""Fifty processes on one file at once: each enqueues and claims, nobody is turned away, every job is claimed once."""

from __future__ import annotations

import json
from collections import Counter

from .nursery import Nursery
from .recording import Scene

PROCESSES, JOBS = 50, 20


def test_fifty_processes_on_one_file(nursery: Nursery, scene: Scene):
    nursery.start("prepare", scene.output("prepare"), url=scene.url, history=scene.history).finish()
    children = [
        nursery.start(
            "share", scene.output(f"share-{number}"),
            url=scene.url, history=scene.history, name=f"process-{number}", jobs=JOBS, total=PROCESSES * JOBS,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    for child in children:
        child.finish()
        assert "locked" not in child.said()
    claimed = Counter(id for child in children for id in json.loads(child.said().splitlines()[-1]))
    history = scene.judge()
    acknowledged = history.ids("acknowledged")
    assert len(acknowledged) == PROCESSES * JOBS
    assert claimed == dict.fromkeys(acknowledged, 1)
    assert {(row["state"], row["attempt"], row["version"]) for row in history.rows} == {("succeeded", 1, 3)}
