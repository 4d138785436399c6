"""A fleet of workers, and kill -9 for them at random moments.

Before a worker is killed it is stopped, so that what it held at its death can be written down: a loss may be charged only
to a job that was alone in its worker. An innocent job that was alone in three killed workers would rightly be taken
for poison; so the killer spares a worker whose only job has met two deaths already.
"""

from __future__ import annotations

import random
import signal
import time
from functools import partial

from tests.support.waiting import wait_until

from .nursery import Child, Nursery
from .recording import Scene


class Fleet:
    def __init__(self, nursery: Nursery, scene: Scene, size: int, concurrency: int = 4) -> None:
        self._nursery = nursery
        self._scene = scene
        self._concurrency = concurrency
        self._born = 0
        self.kills = 0
        self.workers: dict[str, Child] = {}
        for _ in range(size):
            self.hire()

    def hire(self) -> str:
        self._born += 1
        name = f"worker-{self._born}"
        self.workers[name] = self._nursery.start(
            "work", self._scene.output(name),
            url=self._scene.url, history=self._scene.history, name=name, concurrency=self._concurrency,
        )  # fmt: skip
        return name

    def replace_the_dead(self) -> None:
        """A poison job takes its worker with it."""
        for name, worker in list(self.workers.items()):
            if worker.code is not None:
                del self.workers[name]
                self.hire()

    def kill_one(self, chance: random.Random) -> bool:
        """Kill a random worker and hire another. False: it was spared, or could not be looked into."""
        name = chance.choice(list(self.workers))
        worker = self.workers[name]
        worker.stop()
        held = self._held_by(name)
        if held is None or (len(held) == 1 and held[0][1] >= 2):
            worker.send(signal.SIGCONT)
            return False
        self._scene.record("killed", worker=name, held=[id for id, _ in held])
        worker.kill()
        self.kills += 1
        del self.workers[name]
        self.hire()
        return True

    def dismiss(self) -> None:
        """End politely."""
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            worker.finish()
        self.workers.clear()

    def _held_by(self, name: str) -> list[tuple[str, int]] | None:
        return self._scene.database.held_by(name)


def unfinished(scene: Scene) -> int:
    return scene.database.unfinished()


def campaign(fleet: Fleet, scene: Scene, chance: random.Random, kills: int, within: float, least: int = 3) -> None:
    """Kill until `kills` are reached or all work is done, or time is out and there were at least a few kills."""
    deadline = time.monotonic() + within
    while fleet.kills < kills and unfinished(scene) and (fleet.kills < least or time.monotonic() < deadline):
        begun = scene.count("began")
        enough = begun + chance.randint(0, 10)
        moment = time.monotonic() + chance.uniform(0.02, 0.1 if begun and fleet.kills < least else 0.5)
        wait_until(partial(_reached, scene, enough, moment))
        fleet.kill_one(chance)


def _reached(scene: Scene, enough: int, moment: float) -> bool:
    return time.monotonic() > moment or scene.count("began") > enough
