"""kill -9 between any two calls to the store: whatever the moment, a fresh worker finds everything and finishes it."""

from __future__ import annotations

import json
import os
import random
import shutil

import pytest

from .conftest import FILES
from .nursery import KILLED, Nursery
from .recording import Scene

ON_A_SERVER = int(os.environ.get("PERDURE_PLACES") or 6)  # places to die at, of those that there are


def test_wherever_the_script_dies_nothing_is_lost_or_done_twice(nursery: Nursery, tmp_path, scheme, chance):
    model = _prepared(nursery, tmp_path / "whole", scheme)
    whole = nursery.start("script", model.output("script"), url=model.url, history=model.history, last=0)
    whole.finish()
    calls = json.loads(whole.said().splitlines()[-1])["calls"]
    assert calls > 25
    empty = _prepared(nursery, tmp_path / "empty", scheme)
    scenes, children = [model], []
    chosen = range(1, calls + 1) if scheme in FILES else sorted(chance.sample(range(1, calls + 1), ON_A_SERVER))
    for last in chosen:
        # each driver takes every second place before, the others after the call: together they have all
        for before in _sides(scheme, last, chance):
            scene = _copy(nursery, empty, tmp_path / f"{'before' if before else 'after'}-{last}")
            arguments = dict(url=scene.url, history=scene.history, last=last, before=before)
            children.append(nursery.start("script", scene.output("script"), **arguments))
            scenes.append(scene)
    for child in children:
        assert child.wait() == KILLED, child.said()
    _drain(nursery, scenes)
    for scene in scenes:
        scene.judge()


@pytest.mark.parametrize("scheme", FILES[-1:])
def test_wherever_a_worker_dies_nothing_is_lost_or_done_twice(nursery: Nursery, tmp_path, scheme):
    model = _prepared(nursery, tmp_path / "model", scheme)
    names = ["plain", "threaded", "written", "written_by_thread", "fails_once", "hopeless", "snoozes_once", "talks"]
    put = dict(url=model.url, history=model.history, calls=[[name, {}, {}] for name in names])
    nursery.start("put", model.output("put"), **put).finish()
    scenes, children = [model], []
    for last in range(1, 16):
        for before in (True, False):
            scene = _copy(nursery, model, tmp_path / f"{'before' if before else 'after'}-{last}")
            arguments = dict(url=scene.url, history=scene.history, last=last, before=before)
            children.append(nursery.start("fragile_work", scene.output("work"), **arguments))
            scenes.append(scene)
    for child in children:
        assert child.wait() == KILLED, child.said()
    _drain(nursery, scenes)
    for scene in scenes:
        history = scene.judge()
        states = {row["task"]: (row["state"], row["losses"]) for row in history.rows}
        assert states.pop("hopeless") == ("dead", 0)
        assert set(states.values()) == {("succeeded", 0)}


def _prepared(nursery: Nursery, folder, scheme: str) -> Scene:
    folder.mkdir()
    scene = Scene(folder, scheme)
    nursery.start("prepare", scene.output("prepare"), url=scene.url, history=scene.history, watch=True).finish()
    return scene


def _sides(scheme: str, last: int, chance: random.Random) -> tuple[bool, ...]:
    if scheme not in FILES:
        return (chance.random() < 0.5,)
    return ((last + FILES.index(scheme)) % 2 == 0,) if len(FILES) > 1 else (True, False)


def _copy(nursery: Nursery, scene: Scene, folder) -> Scene:
    """Another one like it; on a server, where nothing can be copied, an empty one."""
    if scene.scheme not in FILES:
        return _prepared(nursery, folder, scene.scheme)
    folder.mkdir()
    copy = Scene(folder, scene.scheme)
    for each in scene.folder.glob("[jh]*.[dj]*"):
        if each.is_file():
            shutil.copy(each, folder)
    return copy


def _drain(nursery: Nursery, scenes: list[Scene]) -> None:
    arguments = dict(urls=[scene.url for scene in scenes], histories=[scene.history for scene in scenes])
    nursery.start("drain", scenes[0].output("drain"), **arguments).finish()
