"""Time at the door: instants, durations, clocks."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.clock import (
    LONGEST,
    SECOND,
    SYSTEM,
    boottime,
    datetime_of,
    instant_of,
    micros_of,
    optional_datetime,
    reader,
    seconds_of,
)
from perdure.errors import InvalidCall
from perdure.testing import ManualClock


@given(st.datetimes(timezones=st.just(UTC)))
def test_instants_and_datetimes_are_the_same_thing(moment):
    assert datetime_of(instant_of(moment)) == moment


def test_an_instant_knows_its_zone():
    there = timezone(timedelta(hours=5, minutes=45))
    assert instant_of(datetime(1970, 1, 1, 5, 45, 0, 1, there)) == 1
    assert datetime_of(0).tzinfo is UTC
    assert optional_datetime(None) is None
    assert optional_datetime(SECOND) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("moment", [datetime(2030, 1, 1), date(2030, 1, 1), 1.5, "2030-01-01", None])
def test_what_is_no_instant(moment):
    with pytest.raises(InvalidCall, match="at"):
        instant_of(moment, "at")


@pytest.mark.parametrize(
    ("duration", "micros"),
    [
        (0, 0),
        (1, SECOND),
        (0.1, 100_000),
        (1.0000004, 1_000_000),
        (1e-6, 1),
        (timedelta(milliseconds=1.5), 1500),
        (timedelta(days=1), 86_400 * SECOND),
        (timedelta(microseconds=1), 1),
        (LONGEST // SECOND, LONGEST),
    ],
)
def test_durations(duration, micros):
    assert micros_of(duration) == micros


@pytest.mark.parametrize(
    "duration",
    [-1, -1e-6, timedelta(microseconds=-1), float("nan"), float("inf"), 1e300, "5", None, True, LONGEST // SECOND + 1],
)
def test_what_is_no_duration(duration):
    with pytest.raises(InvalidCall, match="delay"):
        micros_of(duration, "delay")


@pytest.mark.parametrize("duration", [0, 0.0, timedelta(0), 1e-7])
def test_what_must_be_positive(duration):
    assert micros_of(duration) == 0
    with pytest.raises(InvalidCall, match="positive"):
        micros_of(duration, "lease", positive=True)


def test_seconds():
    assert (seconds_of(1_500_000), seconds_of(0), seconds_of(None)) == (1.5, 0.0, None)


def test_readers():
    class Plain:
        def now(self):
            return datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)

    assert reader(Plain())() == 2 * SECOND
    clock = ManualClock(datetime(1970, 1, 1, tzinfo=UTC))
    read = reader(clock)
    clock.advance(3)
    assert read() == 3 * SECOND
    assert abs(reader(None)() - instant_of(SYSTEM.now())) < 60 * SECOND


def test_boottime_does_not_fall():
    moments = [boottime() for _ in range(100)]
    assert moments == sorted(moments)


def test_a_manual_clock_stands_until_it_is_moved():
    start = datetime(2030, 1, 1, tzinfo=UTC)
    clock = ManualClock(start)
    assert clock.now() == clock.now() == start
    clock.advance(1.5)
    assert clock.now() == start + timedelta(seconds=1.5)
    clock.advance(timedelta(hours=-1))
    assert clock.micros() == instant_of(start + timedelta(seconds=1.5, hours=-1))
    clock.set(start)
    assert clock.now() == start
    assert repr(clock) == "ManualClock(2030-01-01T00:00:00+00:00)"
    with pytest.raises(InvalidCall):
        clock.set(datetime(2030, 1, 1))
