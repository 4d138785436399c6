"""The codec: what goes into a payload comes out as it was, and what cannot is refused by name."""

import enum
import math
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.encoding import codec
from perdure.errors import InvalidCall
from perdure.tasks.registry import Registry


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Address:
    street: str
    tags: list[str] = field(default_factory=list)


class Options(TypedDict, total=False):
    retries: int


class Point(msgspec.Struct):
    x: float
    y: float


class Pair(NamedTuple):
    left: int
    right: str


def arguments_of(handler):
    task = Registry().task(name="t")(handler)
    (definition,) = set(task._declared.registry.definitions().values())
    return definition


def there_and_back(kind: Any, value: Any) -> Any:
    async def handler(value): ...

    handler.__annotations__ = {"value": kind}
    definition = arguments_of(handler)
    (read,), keywords = definition.arguments(definition.payload((value,), {}))
    assert keywords == {}
    return read


VALUES = [
    (int, 2**63 - 1),
    (int, -(2**63)),
    (float, 1e300),
    (str, 'NUL \x00, emoji \U0001f600, newline \n, quote ", \u2028'),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff"),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6)),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (uuid.UUID, uuid.UUID(int=5)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Address, Address("x", ["a"])),
    (Options, {"retries": 3}),
    (Point, Point(1.0, 2.0)),
    (Pair, Pair(1, "b")),
    (list[Address], [Address("x")]),
    (dict[int, str], {1: "a", 2: "b"}),
    (dict[str, list[int] | None], {"a": [1], "b": None}),
    (set[int], {1, 2, 3}),
    (tuple[int, str], (1, "a")),
    (int | str | None, "x"),
    (Literal["a", "b"], "a"),
    (Address | None, None),
    (object, [1, {"a": None}]),
    (Any, {"deep": [[1.5, None], True]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_value_comes_back_as_it_was(kind, value):
    read = there_and_back(kind, value)
    assert read == value
    assert type(read) is type(value)


class Stranger:
    pass


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED = [
    (Stranger(), "no JSON form"),
    (lambda: None, "no JSON form"),
    (1j, "no JSON form"),
    ((n for n in [1]), "no JSON form"),
    ({(1, 2): 3}, "no JSON form: the keys of an object are texts or numbers, not tuple"),
    ({None: 3}, "no JSON form: the keys of an object are texts or numbers, not NoneType"),
    ({"a": {True: 3}}, "not bool"),
    (math.nan, "NaN"),
    (math.inf, "infinity"),
    (float("1e400"), "infinity"),
    ([1, {"a": -math.inf}], "NaN or an infinity"),
    (Point(math.nan, 1.0), "NaN or an infinity"),
    (2**63, "beyond 64 bits"),
    (-(2**63) - 1, "beyond 64 bits"),
    ([{"a": 10**40}], "beyond 64 bits"),
    (10**5000, "JSON"),
    ("\ud800", "lone surrogate"),
    ({"\ud800": 1}, "lone surrogate"),
    (["a\udfffb"], "lone surrogate"),
    (nested(65), "64 levels"),
    (nested(5000), "64 levels"),
    (loop(), "64 levels"),
    ({1: "a", "1": "b"}, "two keys"),
    ([{"x": {1: 1, "1": 2}}], "two keys"),
    ("x" * (1 << 20), "bytes"),
]


@pytest.mark.parametrize(("value", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_stored_is_refused_by_name(value, words):
    async def handler(good: int, bad): ...

    definition = arguments_of(handler)
    with pytest.raises(InvalidCall, match=words) as caught:
        definition.payload((1, value), {})
    message = str(caught.value)
    assert message.startswith("t: ")
    if words != "bytes":
        assert "'bad'" in message
        assert type(value).__name__ in message


@pytest.mark.parametrize(("value", "words"), REFUSED, ids=range(len(REFUSED)))
def test_results_are_held_to_the_same(value, words):
    async def handler(): ...

    with pytest.raises(InvalidCall, match=words) as caught:
        arguments_of(handler).encode_result(value)
    assert "the result of t" in str(caught.value)


def test_the_limits_themselves_are_allowed():
    assert there_and_back(Any, nested(64)) == nested(64)
    text = "x" * ((1 << 20) - len('{"value":""}'))
    assert there_and_back(str, text) == text


def test_none_is_stored_as_nothing():
    async def handler() -> None: ...

    definition = arguments_of(handler)
    assert definition.encode_result(None) is None
    assert definition.decode_result(None) is None


def test_results_are_read_by_the_return_annotation():
    async def handler() -> list[Address]: ...

    definition = arguments_of(handler)
    text = definition.encode_result([Address("x")])
    assert definition.decode_result(text) == [Address("x")]
    with pytest.raises(InvalidCall, match="does not fit its annotation"):
        definition.decode_result("5")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_any_json_value_comes_back_as_it_was(value):
    assert codec.decode(codec.encode(value, "it")) == value


WRONG = [
    (int, "1"),
    (int, 1.5),
    (int, True),
    (str, 1),
    (float, "x"),
    (Colour, "blue"),
    (Address, {"street": 1}),
    (Address, {"nostreet": "x"}),
    (list[int], [1, "2"]),
    (datetime, "yesterday"),
    (uuid.UUID, "x"),
    (Literal["a"], "b"),
]


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_arguments_are_checked_against_the_annotations(kind, value):
    with pytest.raises(InvalidCall, match="argument 'value'"):
        there_and_back(kind, value)


def test_a_stored_payload_is_checked_when_it_is_run():
    async def handler(a: int, b: str = ""): ...

    definition = arguments_of(handler)
    assert definition.arguments('{"a":1}') == ([1, ""], {})
    for payload in ('{"a":"x"}', "{}", '{"a":1,"c":2}', "[1]", "garbage", "", '{"a":1', "[" * 5000):
        with pytest.raises(InvalidCall, match=r"^t: "):
            definition.arguments(payload)


def test_every_kind_of_parameter():
    async def handler(a, /, b, c=3, *rest: int, d, e=5, **more: str): ...

    definition = arguments_of(handler)

    def read(*args, **kwargs):
        return definition.arguments(definition.payload(args, kwargs))

    assert definition.payload((1, 2), {"d": 4}) == '{"a":1,"b":2,"d":4}'
    assert (
        definition.payload((1, 2, 3, 4, 5), {"d": 4, "x": "y"})
        == '{"a":1,"b":2,"c":3,"rest":[4,5],"d":4,"more":{"x":"y"}}'
    )
    assert read(1, 2, d=4) == ([1, 2, 3], {"d": 4})
    assert read(1, b=2, d=4, e=6) == ([1, 2, 3], {"d": 4, "e": 6})
    assert read(1, 2, 3, 4, 5, d=4, x="y", a="also", rest="too") == (
        [1, 2, 3, 4, 5],
        {"d": 4, "x": "y", "a": "also", "rest": "too"},
    )
    for args, kwargs in [
        ((), {}),
        ((1,), {"d": 4}),
        ((1, 2), {}),
        ((1, 2), {"b": 2, "d": 4}),
        ((1, 2, 3, "x"), {"d": 4}),
    ]:
        with pytest.raises(InvalidCall, match=r"^t: "):
            definition.payload(args, kwargs)


def test_a_gap_before_a_given_argument_gets_the_default():
    async def handler(a=1, b=2, c=3): ...

    definition = arguments_of(handler)
    assert definition.payload((), {"c": 9}) == '{"c":9}'
    assert definition.arguments('{"c":9}') == ([1, 2, 9], {})


def test_parameters_may_have_any_name():
    async def handler(self_, __struct_fields__, a0, encode): ...

    definition = arguments_of(handler)
    assert definition.arguments(definition.payload((1, 2, 3), {"encode": 4})) == ((1, 2, 3, 4), {})


def test_an_annotation_that_json_cannot_tell_apart_is_refused():
    async def handler(when: str | datetime): ...

    with pytest.raises(InvalidCall, match="'when' is annotated"):
        arguments_of(handler).payload(("x",), {})


def test_pydantic_models_go_there_and_back():
    pydantic = pytest.importorskip("pydantic")

    class User(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        name: str = pydantic.Field(alias="userName")
        born: date
        rank: Decimal = Decimal(1)

    user = User(userName="Ada", born=date(1815, 12, 10))
    assert there_and_back(User, user) == user
    assert there_and_back(list[User] | None, [user]) == [user]
    with pytest.raises(InvalidCall, match="argument 'value'"):
        there_and_back(User, {"userName": 5, "born": "1815-12-10"})


def test_pydantic_is_not_imported_for_anybody():
    used = "import sys, perdure.core.encoding.codec as c; c.encode([1], 'x'); c.decoder(int)('1')"
    code = f"{used}; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("order", [1, -1])
def test_the_hash_of_arguments_knows_defaults_and_order(order):
    async def handler(a: dict, b: int = 2, c: set[str] = frozenset()): ...

    definition = arguments_of(handler)

    def hashed(*args, **kwargs):
        return definition.arguments_hash(definition.payload(args, kwargs))

    keys = list("abcdef")[::order]
    first = hashed(dict.fromkeys(keys, 1))
    assert first == hashed(a=dict.fromkeys("abcdef", 1), b=2)
    assert first != hashed(dict.fromkeys(keys, 1), 3)
    assert hashed({}, c=set(keys)) == hashed({}, c=set("abcdef"))
    assert len(first) == 64
