"""Turns between those who write."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from perdure.storage.sqlite.connection import fair_write_lock
from perdure.storage.sqlite.connection.fair_write_lock import FairWriteLock


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "by Python alone"])
def test_one_at_a_time_and_the_next_in_line(tmp_path, monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(fair_write_lock, "_at_once", lambda: lambda file, operation: -1)
    first, second = FairWriteLock(tmp_path), FairWriteLock(tmp_path)
    came = threading.Event()

    def take():
        with second:
            came.set()

    with first:
        waiting = threading.Thread(target=take)
        waiting.start()
        assert not came.wait(0.1)
    assert came.wait(10)
    waiting.join()
    with first:  # both locks were dropped
        pass
    first.close()
    second.close()


def test_who_has_just_written_comes_after_who_waits(tmp_path):
    one, two = FairWriteLock(tmp_path), FairWriteLock(tmp_path)
    order: list[str] = []

    def write() -> None:
        with two:
            order.append("the one who waited")

    with one:
        waiting = threading.Thread(target=write)
        waiting.start()
        _until_somebody_is_next(tmp_path)
        assert order == []
    with one:
        order.append("the first one again")
    waiting.join(30)
    one.close()
    two.close()
    assert order == ["the one who waited", "the first one again"]


def _until_somebody_is_next(folder: Path) -> None:
    deadline = time.monotonic() + 10
    with (folder / "next").open() as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.001)
    raise AssertionError("nobody waits for the next turn")
