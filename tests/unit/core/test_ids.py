"""Ids: UUIDv7, rising within a process; stamps; what is taken for an id."""

import os
import threading
import time
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from perdure.core import ids
from perdure.core.ids import id_text, new_id, new_ids, new_stamp
from perdure.errors import InvalidCall


def test_an_id_is_a_uuid_of_version_7():
    before = time.time_ns() // 1_000_000
    made = UUID(new_id())
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before - 1 <= made.int >> 80 <= time.time_ns() // 1_000_000 + 1000
    assert str(made) == str(UUID(str(made)))


def test_ids_rise():
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_ids_of_a_list_are_like_those_made_one_by_one():
    made = new_ids(40_000)  # more than have all but their last digits in common
    assert made == [str(UUID(each)) for each in made] == sorted(set(made))
    assert {UUID(each).version for each in made} == {7}
    assert new_id() > made[-1]


def test_ids_rise_when_the_clock_stands_or_goes_back(monkeypatch):
    now = time.time_ns() + 10**12
    made = []
    for moment in [now, now, now - 10**12, now + 10**9, now - 10**15, now]:
        monkeypatch.setattr(ids.time, "time_ns", lambda moment=moment: moment)
        made += [new_id() for _ in range(500)]
    assert made == sorted(set(made))
    monkeypatch.undo()
    ids._last = 0


def test_threads_never_make_the_same_id():
    made = [[] for _ in range(4)]

    def make(mine):
        mine += [new_id() for _ in range(2_000)]

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({id for mine in made for id in mine}) == 8_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_draws_its_own(monkeypatch):
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_800_000_000_000_000_000)
    new_id()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(tell, "".join(new_id() for _ in range(20)).encode())
        finally:
            os._exit(0)
    os.close(tell)
    ours = {new_id() for _ in range(20)}
    with os.fdopen(told) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    theirs = {text[start : start + 36] for start in range(0, len(text), 36)}
    assert len(theirs) == 20
    assert not ours & theirs
    monkeypatch.undo()
    ids._last = 0


def test_stamps_fit_a_signed_integer_and_differ():
    made = {new_stamp() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(0 < stamp < 2**63 for stamp in made)


def test_what_is_taken_for_an_id():
    known = uuid4()
    for ref in (known, str(known), str(known).upper(), known.hex, f"{{{known}}}", SimpleNamespace(id=known)):
        assert id_text(ref) == str(known)


@pytest.mark.parametrize("ref", ["", "x", "123", None, 7, 1.5, b"x", object(), SimpleNamespace(id="x"), ["x"]])
def test_what_is_not(ref):
    with pytest.raises(InvalidCall):
        id_text(ref)
