"""kill -9 of programs that enqueue: what was acknowledged is there."""

from __future__ import annotations

import os

import pytest

from tests.support.waiting import wait_until

from .nursery import KILLED, Nursery
from .recording import Scene


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_every_acknowledged_job_survives(nursery: Nursery, scene: Scene, chance, kills):
    kills = int(os.environ.get("PERDURE_KILLS") or kills) if kills > 6 else kills
    nursery.start("prepare", scene.output("prepare"), url=scene.url, history=scene.history).finish()
    for number in range(kills):
        before = scene.count("acknowledged")
        enough = before + chance.randint(1, 60)
        children = [
            nursery.start(
                "enqueue", scene.output(f"enqueue-{number}-{twin}"),
                url=scene.url, history=scene.history, seed=chance.getrandbits(32), count=100_000,
            )
            for twin in range(2)
        ]  # fmt: skip
        wait_until(lambda enough=enough: scene.count("acknowledged") >= enough)
        for child in children:
            child.kill()
            assert child.code == KILLED, child.said()
    history = scene.judge(drained=False)
    assert len(history.ids("acknowledged")) > kills
