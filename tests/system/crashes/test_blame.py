"""Who is blamed for a dead worker: only a job that was alone in it. The others are suspects, and run alone."""

from __future__ import annotations

import signal

import pytest

from tests.support.waiting import wait_until

from .killer import Fleet, unfinished
from .nursery import Child, Nursery
from .recording import Scene

pytestmark = pytest.mark.parametrize("scheme", ["sqlite"])  # the blame is the same on all stores


def _begun(scene: Scene, count: int) -> None:
    wait_until(lambda: scene.count("began") >= count)


def _put(nursery: Nursery, scene: Scene, *call, **options) -> None:
    arguments = dict(url=scene.url, history=scene.history, calls=[call], **options)
    nursery.start("put", scene.output("put"), **arguments).finish()


def _row(scene: Scene, task: str) -> dict:
    (row,) = [row for row in scene.rows() if row["task"] == task]
    return row


def test_jobs_whose_leases_end_one_after_the_other_were_not_alone(nursery: Nursery, scene: Scene):
    arguments = dict(url=scene.url, history=scene.history)
    nursery.start("prepare", scene.output("prepare"), **arguments, watch=True).finish()
    fleet = Fleet(nursery, scene, size=1)
    (name,) = fleet.workers
    _put(nursery, scene, "plain", {"seconds": 60}, {}, lease=3.0)
    _begun(scene, 1)
    wait_until(lambda: _noted(scene) == 1)  # its lease was renewed: it ends later than it began
    _put(nursery, scene, "threaded", {"seconds": 60}, {}, lease=3.0)
    _begun(scene, 2)
    worker = fleet.workers.pop(name)
    wait_until(lambda: _stopped(worker, name, scene))
    scene.record("killed", worker=name, held=[id for id, _ in scene.database.held_by(name) or []])
    worker.kill()
    fleet.hire()
    wait_until(lambda: _came_back(scene) == 2)
    assert {row["losses"] for row in scene.rows()} == {0}
    for worker in fleet.workers.values():
        worker.kill()
    scene.judge(drained=False)


def _stopped(worker: Child, name: str, scene: Scene) -> bool:
    """Stopped, but not in the middle of a write: nobody could look into the file until it goes on."""
    worker.stop()
    if scene.database.held_by(name) is not None:
        return True
    worker.send(signal.SIGCONT)
    return False


def _came_back(scene: Scene) -> int:
    return sum((move["was"], move["now"]) == ("running", "ready") for move in scene.rows("moves"))


def _noted(scene: Scene) -> int:
    return sum(row["started_at"] is not None for row in scene.rows())


def test_poison_that_kills_at_once_is_not_blamed_on_its_neighbour(nursery: Nursery, scene: Scene):
    """The start of a job that ends its worker within a moment is never on record; that of a long one beside it is."""
    arguments = dict(url=scene.url, history=scene.history)
    nursery.start("prepare", scene.output("prepare"), **arguments, watch=True).finish()
    fleet = Fleet(nursery, scene, size=1)
    _put(nursery, scene, "plain", {"seconds": 1.2}, {"max_attempts": 1})
    _begun(scene, 1)
    wait_until(lambda: _noted(scene) == 1)
    _put(nursery, scene, "poison", {}, {})

    def done() -> bool:
        fleet.replace_the_dead()
        return unfinished(scene) == 0

    wait_until(done, 60)
    fleet.dismiss()
    scene.judge()
    innocent, poison = _row(scene, "plain"), _row(scene, "poison")
    assert (innocent["state"], innocent["losses"]) == ("succeeded", 0), innocent["reason"]
    assert (poison["state"], poison["losses"]) == ("dead", 3)
