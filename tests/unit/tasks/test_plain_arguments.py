"""Arguments of plain kinds are written without being read again, and to the same text."""

from typing import Any

import pytest

from perdure import InvalidCall, Perdure
from perdure.tasks.task import Task


def tasks() -> tuple[Perdure, Task[..., None]]:
    app = Perdure("memory://")

    @app.task
    async def note(text: str, number: int, share: float, loud: bool) -> None: ...

    note.call("first", 1, 0.5, True)  # the first call learns what the parameters are
    return app, note


@pytest.mark.parametrize(
    "arguments",
    [
        ("plain", 1, 0.5, False),
        ('"quoted" \\ \x00 é 😀', -(2**63), -0.0, True),
        ("", 2**63 - 1, 1e300, True),
    ],
)
def test_plain_arguments_make_the_payload_that_their_names_make(arguments: tuple[Any, ...]) -> None:
    _, note = tasks()
    by_name = dict(zip(("text", "number", "share", "loud"), arguments, strict=True))
    assert note.call(*arguments)._payload == note.call(**by_name)._payload


def test_a_whole_number_for_a_float_is_looked_at_and_taken() -> None:
    _, note = tasks()
    assert note.call("x", 1, 2, True)._payload == '{"text":"x","number":1,"share":2,"loud":true}'


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("\ud800", 1, 0.5, True), "lone surrogate"),
        (("x", 2**63, 0.5, True), "64 bits"),
        (("x", 1, float("nan"), True), "NaN"),
        (("x", 1, float("inf"), True), "infinity"),
        (("x", True, 0.5, True), "number"),
        (("x", 1, 0.5, 1), "loud"),
        ((b"x" * 2, "1", 0.5, True), "number"),
        (("x" * (1 << 20), 1, 0.5, True), "bytes of JSON"),
    ],
)
def test_what_is_wrong_is_refused_as_before(arguments: tuple[Any, ...], told: str) -> None:
    _, note = tasks()
    with pytest.raises(InvalidCall, match=told):
        note.call(*arguments)
