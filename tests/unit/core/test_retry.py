"""Backoff and retention: what they say, what they refuse, and how they travel."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.backoff import DEFAULT_BACKOFF, Backoff
from perdure.core.clock import SECOND
from perdure.core.retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION, Retention
from perdure.errors import InvalidCall


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff.exponential(1.0), [1, 2, 4, 8, 16]),
        (Backoff.exponential(2.0, multiplier=3.0, maximum=30), [2, 6, 18, 30, 30]),
        (Backoff.exponential(0.5, multiplier=1.0), [0.5, 0.5, 0.5]),
        (Backoff.exponential(10, maximum=5), [5, 5]),
        (Backoff.exponential(0), [0, 0, 0]),
        (Backoff.fixed(60), [60, 60, 60]),
        (Backoff.fixed(timedelta(minutes=1)), [60, 60]),
    ],
)
def test_delays(backoff, delays):
    assert [backoff.delay(n, draw=0.0) / SECOND for n in range(1, len(delays) + 1)] == delays


def test_jitter_is_added_beyond_the_maximum():
    backoff = Backoff.exponential(1.0, maximum=8.0, jitter=4.0)
    assert [backoff.delay(9, draw=draw) / SECOND for draw in (0.0, 0.25, 1.0)] == [8, 9, 12]
    assert Backoff.fixed(1, jitter=1).delay(1, draw=0.5) == 1.5 * SECOND


def test_no_number_of_failures_is_too_large():
    assert Backoff.exponential(1.0).delay(10**6, draw=0.0) == 3600 * SECOND
    assert Backoff.exponential(1.0, multiplier=1e300).delay(5, draw=0.0) == 3600 * SECOND


@given(
    st.floats(0, 1e6), st.floats(1, 100), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10**6), st.floats(0, 1)
)
def test_a_delay_stays_within_its_bounds(initial, multiplier, maximum, jitter, failures, draw):
    backoff = Backoff.exponential(initial, multiplier=multiplier, maximum=maximum, jitter=jitter)
    delay = backoff.delay(failures, draw=draw)
    assert 0 <= delay <= backoff.maximum + backoff.jitter + 1
    assert Backoff.parse(backoff.text()) == backoff


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff.exponential(-1),
        lambda: Backoff.exponential(1, multiplier=0.5),
        lambda: Backoff.exponential(1, multiplier=float("nan")),
        lambda: Backoff.exponential(1, multiplier=float("inf")),
        lambda: Backoff.exponential(1, multiplier="2"),
        lambda: Backoff.exponential(1, maximum=-1),
        lambda: Backoff.exponential(1, jitter=-1),
        lambda: Backoff.exponential(float("nan")),
        lambda: Backoff.fixed(-1),
        lambda: Backoff.fixed("60"),
        lambda: Retention.keep(last=-1),
        lambda: Retention.keep(last=1.5),
        lambda: Retention.keep(last=True),
        lambda: Retention.keep(age=-1),
        lambda: Retention.keep(age="1"),
    ],
)
def test_what_is_refused(make):
    with pytest.raises(InvalidCall):
        make()


@pytest.mark.parametrize(
    ("retention", "text"),
    [
        (Retention.delete(), '"delete"'),
        (Retention.keep(), "{}"),
        (Retention.keep(last=0), '{"last":0}'),
        (Retention.keep(last=9, age=1), '{"last":9,"age":1000000}'),
        (Retention.keep(age=timedelta(days=1)), '{"age":86400000000}'),
    ],
)
def test_retention_travels_as_text(retention, text):
    assert retention.text() == text
    assert Retention.parse(text) == retention


def test_defaults():
    assert Backoff.exponential(1.0, multiplier=2.0, maximum=3600.0, jitter=0.0) == DEFAULT_BACKOFF
    assert Retention.keep(age=7 * 86_400) == DEFAULT_RETENTION
    assert Retention.keep() == DEFAULT_DEAD_RETENTION
