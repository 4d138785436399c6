"""The bad values that the fuzzer writes into stored fields, by name."""

from __future__ import annotations

DEEP = "[" * 5_000 + "]" * 5_000
LARGE = '"' + "x" * (1 << 20) + '"'

# a value is what the driver is given; a store may refuse it
NOTHING: dict[str, object] = {"null": None}
NUMBERS: dict[str, object] = {
    "zero": 0,
    "negative": -1,
    "smallest": -(1 << 63),
    "huge": 1 << 62,
    "largest": (1 << 63) - 1,
    "beyond 53 bits": (1 << 53) + 1,
    "fraction": 1.5,
}
TEXTS: dict[str, object] = {
    "empty": "",
    "a word": "nonsense",
    "a number": "123",
    "broken JSON": '{"a": [1,',
    "an object": '{"a": 1}',
    "an array": '[1, "b", null]',
    "array of arrays": '[[1, 2], ["x"]]',
    "deep JSON": DEEP,
    "1 MB": LARGE,
    "NUL": '"a\x00b"',
    "line break": "a\nb\x1b[31m",
    "escaped surrogate": '"\\ud800"',
    "truncated": '["exponential",1000',
    "a state": "ready",
    "unknown state": "sleeping",
    "separator": "a\x1eb",
}
BYTES: dict[str, bytes] = {
    "invalid UTF-8": b"\xff\xfe\x00",
    "invalid UTF-8 in JSON": b'{"a": "\xff"}',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "cut character": b'{"a":"\xc3',
}
