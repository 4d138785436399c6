"""A handler gets what its caller gave: what JSON would change is refused, unless an annotation tells what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest

from perdure import InvalidCall, Perdure


@dataclass
class Box:
    name: str
    content: Any


class Crate(msgspec.Struct):
    boxes: list[Box]


class Row(TypedDict):
    id: int
    data: dict[str, Any]


class Pair(NamedTuple):
    left: int
    right: int


Anything = NewType("Anything", object)

REFUSED = [
    (Any, b"x", "a value of type bytes would arrive as a base64 text; annotate it as bytes"),
    (object, bytearray(b"x"), "a value of type bytearray would arrive as a base64 text; annotate it as bytes"),
    (Any, {1}, "a value of type set would arrive as a list; annotate it as set[…], or pass a list"),
    (Any, frozenset({1}), "a value of type frozenset would arrive as a list; annotate it as set[…], or pass a list"),
    (Any, (1, 2), "a value of type tuple would arrive as a list; annotate it as tuple[…], or pass a list"),
    (Any, Pair(1, 2), "a value of type Pair would arrive as a list; annotate it as tuple[…], or pass a list"),
    (Any, {1: 2}, "the key 1 of type int would arrive as a text; annotate it as dict[int, …], or use texts"),
    (Any, {"a": [0, {"b": (1,)}]}, "value['a'][1]['b']: a value of type tuple would arrive as a list"),
    (dict, {1: 2}, "the key 1 of type int would arrive as a text"),
    (dict[str, Any], {"a": b"x"}, "value['a']: a value of type bytes would arrive"),
    (dict[str, object], {"a": {"b": {1}}}, "value['a']['b']: a value of type set"),
    (Mapping[str, Any], {"a": (1,)}, "value['a']: a value of type tuple"),
    (list, [(1,)], "value[0]: a value of type tuple"),
    (list[Any], [0, b"x"], "value[1]: a value of type bytes"),
    (Sequence[Any], [0, {1: 2}], "value[1]: the key 1 of type int"),
    (tuple[int, Any], (1, {2}), "value[1]: a value of type set"),
    (list[Any] | None, [b"x"], "value[0]: a value of type bytes"),
    (Annotated[Any, "note"], b"x", "a value of type bytes"),
    (Box, Box("a", {1}), "value.content: a value of type set"),
    (Crate, Crate([Box("a", 1), Box("b", (1,))]), "value.boxes[1].content: a value of type tuple"),
    (Row, {"id": 1, "data": {"a": b"x"}}, "value['data']['a']: a value of type bytes"),
]


def task_of(kind):
    app = Perdure("memory://")

    async def task(value) -> None: ...

    task.__annotations__["value"] = kind
    return app.task(task)


@pytest.mark.parametrize(("kind", "value", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_arrive_as_something_else_is_refused(kind, value, words):
    with pytest.raises(InvalidCall) as caught:
        task_of(kind).call(value)
    assert str(caught.value).startswith(f"task: argument 'value': {words}")


KEPT = [
    (bytes, b"x"),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2)),
    (dict[int, str], {1: "a"}),
    (list[tuple[int, int]], [(1, 2)]),
    (dict[str, set[int]], {"a": {1}}),
    (set[int] | None, {1}),
    (Any, [1, {"a": [None, 1.5, True, "x"]}]),
    (Box, Box("a", [1, {"b": 2}])),
]


@pytest.mark.parametrize(("kind", "value"), KEPT, ids=range(len(KEPT)))
async def test_what_the_annotation_tells_comes_back(kind, value):
    app = Perdure("memory://")
    got = []

    async def task(value) -> None:
        got.append(value)

    task.__annotations__["value"] = kind
    await app.task(task).run(value)
    assert got == [value]
    assert type(got[0]) is type(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Sequence[int], (1, 2)),  # a sequence is what was asked for
        (list[int], (1, 2)),
        (Any, UUID(int=1)),  # these have a text of their own, which says what they are
        (Any, datetime(2030, 1, 1, tzinfo=UTC)),
        (Any, Box("a", 1)),
    ],
    ids=range(5),
)
def test_what_fits_the_annotation_is_taken(kind, value):
    task_of(kind).call(value)


async def test_further_arguments_are_no_tuple():
    app = Perdure("memory://")

    @app.task
    async def total(*numbers: Any, **more: Any) -> Any:
        return [*numbers, *more.values()]

    assert await total.run(1, 2, three=3) == [1, 2, 3]
    with pytest.raises(InvalidCall, match=r"argument 'numbers': numbers\[1\]: a value of type bytes"):
        total.call(1, b"x")
    with pytest.raises(InvalidCall, match=r"argument 'more': more\['key'\]: a value of type set"):
        total.call(1, key={1})
