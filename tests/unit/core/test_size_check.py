"""What is far too large is refused before it is written, so that the event loop is not blocked for its sake."""

import sys
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from perdure import InvalidCall, Perdure
from perdure.core.encoding import codec
from perdure.core.encoding.size_check import measure
from perdure.tasks import arguments

LIMIT = 1 << 20


@dataclass
class Point:
    data: Any
    _private: Any = None


class Record(msgspec.Struct):
    data: Any


def doubled(levels: int) -> list[Any]:
    """A small value with a text of 2 to the power of `levels` entries."""
    value: list[Any] = [0]
    for _ in range(levels):
        value = [value, value]
    return value


FAR_TOO_LARGE = {
    "a million numbers": list(range(1_000_000)),
    "a million truths": [None, True] * 500_000,
    "pairs": [[0, 1]] * 300_000,
    "objects": [{"a": 0}] * 200_000,
    "a long text": "x" * (LIMIT + 1),
    "texts": ["x" * 1000] * 1100,
    "the same text again": {"a": ["x" * LIMIT] * 1000},
    "long keys": {f"{n:01000}": 0 for n in range(1100)},
    "doubled": doubled(60),
    "a dataclass": Point(list(range(1_000_000))),
    "a struct": Record(["x" * LIMIT, "y"]),
    "bytes": [b"x" * LIMIT, b"y"],
    "a set": set(range(600_000)),
    "a tuple": (0,) * 600_000,
}


@pytest.fixture
def unwritten(monkeypatch):
    """Whatever is written as JSON fails the test."""

    def written(value):
        raise AssertionError("it was written")

    monkeypatch.setattr(codec, "_encode", written)
    monkeypatch.setattr(arguments, "_encoded", written)


@pytest.mark.parametrize("value", FAR_TOO_LARGE.values(), ids=FAR_TOO_LARGE)
def test_what_is_far_too_large_is_refused_before_it_is_written(unwritten, value):
    app = Perdure("memory://")

    @app.task
    async def task(small: int, large) -> None: ...

    kind = type(value).__name__
    words = rf"argument 'large' \({kind}\) has more than 1048576 bytes of JSON; store large things elsewhere"
    with pytest.raises(InvalidCall, match=f"^task: {words}"):
        task.call(1, value)
    with pytest.raises(InvalidCall, match=r"^the result of task has more than 1048576 bytes of JSON"):
        app.definitions()["task"].encode_result(value)


def test_a_long_text_is_refused_before_it_is_written(monkeypatch):
    app = Perdure("memory://")

    @app.task
    async def one(text: str) -> None: ...

    @app.task
    async def two(number: int, text: str) -> None: ...

    assert one.call("x")._payload == '{"text":"x"}'  # from here on the fast path is taken
    assert two.call(1, "x")._payload == '{"number":1,"text":"x"}'
    monkeypatch.setattr(codec, "_encode", None)
    monkeypatch.setattr(arguments, "_encoded", None)
    for wrong in (lambda: one.call("x" * (LIMIT + 1)), lambda: two.call(1, "x" * (LIMIT + 1))):
        with pytest.raises(InvalidCall, match=r"argument 'text' \(str\) has more than 1048576 bytes"):
            wrong()


@pytest.mark.parametrize(
    "value",
    [
        list(range(1000)),
        {"a": [1, "two", None, {"b": 2.5}], "c": "é" * 100},
        [[], {}, "", 0],
        Point([1, 2, {"x": "y"}], _private="x" * 5000),
        Record({"a": (1, 2)}),
        {1, 2, 3},
        b"some bytes",
        {1: "a", 2: "b"},
        [f"{n}" for n in range(100)],
        [*range(100), "text"],
    ],
    ids=range(10),
)
def test_the_size_is_never_more_than_the_text_has(value):
    assert 0 < measure(value, LIMIT).size <= len(codec.encoded(value))


def test_the_work_is_bounded_by_the_limit():
    """A value that holds itself, many times over, is not looked at for ever."""
    value: list[Any] = []
    value += [value] * 10
    seen = [0]

    def count(frame, event, argument):
        seen[0] += 1
        return

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assert measure(value, 10_000).size > 10_000
    finally:
        sys.setprofile(before)
    assert seen[0] < 20_000
