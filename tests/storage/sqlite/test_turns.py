"""Turns between those who write."""

import threading

import pytest

from perdure.storage.sqlite import turns
from perdure.storage.sqlite.turns import Turns


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "by Python alone"])
def test_one_at_a_time_and_the_next_in_line(tmp_path, monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(turns, "_at_once", lambda: lambda file, operation: -1)
    first, second = Turns(tmp_path), Turns(tmp_path)
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
