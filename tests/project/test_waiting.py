"""The helpers with which tests wait and judge by the clock."""

import threading
import time

import pytest

from tests.support.machine import Machine
from tests.support.waiting import eventually, stays, wait_until


async def test_eventually_gives_the_first_true_value():
    values = iter([0, "", 7, 8])
    assert await eventually(lambda: next(values)) == 7

    async def asked() -> int:
        return next(values)

    assert await eventually(asked) == 8
    with pytest.raises(AssertionError, match="never"):
        await eventually(lambda: False, 0.02, "never")


def test_wait_until_gives_the_first_true_value():
    values = iter([0, 7])
    assert wait_until(lambda: next(values)) == 7
    with pytest.raises(AssertionError, match="seen 3"):
        wait_until(lambda: False, 0.02, lambda: "seen 3")


async def test_what_stays_is_looked_at_all_the_time():
    looks = []
    await stays(lambda: looks.append(1) is None, 0.05)
    assert len(looks) > 1
    values = iter([True, True, False])
    with pytest.raises(AssertionError):
        await stays(lambda: next(values), 5)


def test_seconds_are_those_of_an_idle_machine_or_more():
    with Machine() as machine:
        time.sleep(0.3)
    assert machine.seconds(1) >= 1


def test_seconds_grow_where_others_are_at_work():
    """Threads that want the same interpreter stand for programs that want the same processor."""
    over = threading.Event()

    def busy():
        while not over.is_set():
            sum(range(1000))

    others = [threading.Thread(target=busy) for _ in range(4)]
    with Machine() as machine:
        for other in others:
            other.start()
        wait_until(lambda: machine.seconds(1) > 1.5)
        over.set()
    for other in others:
        other.join()
