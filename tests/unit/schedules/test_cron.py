"""When expressions tick: against cronsim's own search, and against every clock change of every time zone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from perdure import InvalidCall
from perdure.core.clock import SECOND, datetime_of, instant_of
from perdure.schedules.cron import Cron, cron_of, zone_of
from tests.support.exploring import examples

BERLIN = "Europe/Berlin"


def ticks(text, begin, count, zone="UTC"):
    cron, instant, found = cron_of(text, zone), instant_of(begin), []
    while len(found) < count and (instant := cron.after(instant)) is not None:
        found.append(datetime_of(instant))
    return found


def shown(text, begin, count, zone="UTC"):
    return [tick.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M:%S%z") for tick in ticks(text, begin, count, zone)]


# ---- fields ----------------------------------------------------------------------------------------
def test_five_fields_six_fields_and_macros():
    begin = datetime(2026, 12, 30, 23, 59, 58, 500_000, tzinfo=UTC)
    assert shown("*/10 * * * * *", begin, 2) == ["12-31 00:00:00+0000", "12-31 00:00:10+0000"]
    assert shown("59 59 23 * * *", begin, 2) == ["12-30 23:59:59+0000", "12-31 23:59:59+0000"]
    assert shown("0 */15 * * * *", begin, 2) == ["12-31 00:00:00+0000", "12-31 00:15:00+0000"]
    assert shown("0 12 * * MON-FRI", begin, 2) == ["12-31 12:00:00+0000", "01-01 12:00:00+0000"]
    assert shown("0 0 L * *", begin, 2) == ["12-31 00:00:00+0000", "01-31 00:00:00+0000"]
    assert shown("@hourly", begin, 2) == ["12-31 00:00:00+0000", "12-31 01:00:00+0000"]
    assert shown(" @Daily ", begin, 1) == shown("@midnight", begin, 1) == ["12-31 00:00:00+0000"]
    assert shown("@weekly", begin, 1) == ["01-03 00:00:00+0000"]
    assert shown("@monthly", begin, 1) == shown("@yearly", begin, 1) == shown("@annually", begin, 1)


def test_a_tick_is_after_the_instant_that_is_given():
    tick = instant_of(datetime(2026, 1, 1, tzinfo=UTC))
    cron = cron_of("0 0 * * *")
    assert cron.after(tick - 1) == tick
    assert cron.after(tick) == tick + 86_400 * SECOND
    assert cron.latest(tick, tick + 86_400 * SECOND - 1) == tick
    assert cron.latest(tick, tick + 10 * 86_400 * SECOND) == tick + 10 * 86_400 * SECOND


@pytest.mark.parametrize(
    "text",
    [
        "", "*", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8",
        "60 * * * * *", "@reboot", "@", "@every 5s", "1-2-3 * * * *", "5-1 * * * *", "*/0 * * * *", "/5 * * * *",
        "a * * * *", "-1 * * * *", "0 0 31 2 *", "0 0 30,31 2 *", "0 0 31 4,6,9,11 *", "0 0 * * 1#6", "0 0 * * 5L/2",
        "² * * * *", "* * * * ٣", "0 0 1 1 *\x00", "9" * 900 + " * * * *", "*/" + "9" * 900 + "x * * * *",
        "1," * 400 + " * * * *", "x" * 10_000, "* " * 5_000, "(" * 999,
    ],
)  # fmt: skip
def test_nonsense_is_refused_at_once(text):
    began = time.thread_time()
    with pytest.raises(InvalidCall, match="cron"):
        cron_of(text)
    assert time.thread_time() - began < 0.5


def test_a_search_ends():
    began = time.thread_time()
    assert Cron("0 0 29 2 *", UTC).after(instant_of(datetime(9990, 1, 1, tzinfo=UTC))) is None  # the calendar ends
    assert len(ticks("0 0 29 2 *", datetime(2095, 1, 1, tzinfo=UTC), 3)) == 3  # 2096, then 2104
    assert len(ticks("* * * * * *", datetime(8000, 1, 1, tzinfo=UTC), 3)) == 3
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    "name", ["", "Mars/Base", "../../etc/passwd", "Europe", "x" * 5_000, "\x00", "/etc/localtime", "ü"]
)
def test_a_time_zone_that_is_none(name):
    with pytest.raises(InvalidCall, match="time zone"):
        zone_of(name)


# ---- against cronsim -------------------------------------------------------------------------------
def _field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.tuples(st.sampled_from(["*"]) | span, st.integers(1, 30)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.just("*") | st.lists(number.map(str) | span | step, min_size=1, max_size=3).map(",".join)


_TIME = [_field(0, 59), _field(0, 59), _field(0, 23)]
_DAY = [_field(1, 28) | st.sampled_from(["L", "31", "30"]), st.just("*") | _field(1, 12)]
_WEEKDAY = st.just("*") | _field(0, 7) | st.sampled_from(["MON-FRI", "5L", "1#2", "SUN"])
_SIX = st.tuples(*_TIME, *_DAY, _WEEKDAY).map(" ".join)
_FIVE = st.tuples(*_TIME[1:], *_DAY, _WEEKDAY).map(" ".join)
_WHEN = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1))


def _by_cronsim(text, begin, count):
    simulated, found = CronSim(text, begin), []
    try:
        while len(found) < count:
            found.append(next(simulated).astimezone(UTC))
    except StopIteration:
        pass
    return found


@examples(300)
@given(_SIX | _FIVE, _WHEN)
def test_the_same_as_cronsim_where_clocks_stay(text, when):
    begin = when.replace(tzinfo=UTC)
    try:
        expected = _by_cronsim(text, begin, 4)
    except Exception:
        with pytest.raises(InvalidCall):
            cron_of(text)
        return
    assert ticks(text, begin, 4) == expected


@examples(50)
@given(
    st.tuples(st.integers(0, 59), st.integers(0, 23)),
    _WHEN,
    st.sampled_from([BERLIN, "America/New_York", "Australia/Sydney", "America/Santiago", "Asia/Beirut"]),
)
def test_the_same_as_cronsim_for_fixed_times_where_clocks_move(time_of_day, when, zone):
    text = "{} {} * * *".format(*time_of_day)
    begin = when.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
    assert ticks(text, begin, 200, zone) == _by_cronsim(text, begin, 200)


# ---- clocks put forward and back -------------------------------------------------------------------
def test_fixed_times_in_the_gap_come_right_after_it_and_once():
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)  # 02:00 becomes 03:00 on the 29th
    assert shown("30 2 * * *", before, 2, BERLIN) == ["03-29 03:00:00+0200", "03-30 02:30:00+0200"]
    assert shown("15,45 2 * * *", before, 2, BERLIN) == ["03-29 03:00:00+0200", "03-30 02:15:00+0200"]
    assert shown("0 30 2 * * *", before, 1, BERLIN) == ["03-29 03:00:00+0200"]
    assert shown("0 2,3 * * *", before, 2, BERLIN) == ["03-29 03:00:00+0200", "03-30 02:00:00+0200"]


def test_fixed_times_that_come_twice_count_the_first_time():
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)  # 03:00 becomes 02:00 on the 25th
    assert shown("30 2 * * *", before, 2, BERLIN) == ["10-25 02:30:00+0200", "10-26 02:30:00+0100"]
    second_pass = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 again
    assert shown("30 2 * * *", second_pass, 1, BERLIN) == ["10-26 02:30:00+0100"]
    assert shown("30 2,3 * * *", second_pass, 1, BERLIN) == ["10-25 03:30:00+0100"]


def test_intervals_go_on_with_elapsed_time():
    assert shown("*/30 * * * *", datetime(2026, 3, 29, 0, 30, tzinfo=UTC), 2, BERLIN) == [
        "03-29 03:00:00+0200",
        "03-29 03:30:00+0200",
    ]
    assert shown("*/30 * * * *", datetime(2026, 10, 25, 0, 0, tzinfo=UTC), 4, BERLIN) == [
        "10-25 02:30:00+0200",
        "10-25 02:00:00+0100",
        "10-25 02:30:00+0100",
        "10-25 03:00:00+0100",
    ]
    assert shown("*/30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), 1, BERLIN) == ["03-30 02:00:00+0200"]
    # only the second pass is left of a day that comes once a year
    assert shown("*/20 2 25 10 *", datetime(2026, 10, 25, 0, 50, tzinfo=UTC), 3, BERLIN) == [
        "10-25 02:00:00+0100",
        "10-25 02:20:00+0100",
        "10-25 02:40:00+0100",
    ]


def _changes(zone: ZoneInfo, year: int) -> list[int]:
    """The instants of a year at which the clocks of a zone are moved, in seconds."""

    def offset(second: int) -> timedelta | None:
        return datetime.fromtimestamp(second, zone).utcoffset()

    begin = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    found = []
    for day in range(366):
        low, high = begin + day * 86_400, begin + (day + 1) * 86_400
        if offset(low) != offset(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
            found.append(high)
    return found


@pytest.mark.parametrize("year", [2011, 2026])  # Samoa left out a day of 2011
def test_every_change_of_every_zone(year):
    changes = {}
    for name in sorted(available_timezones() - {"localtime"}):
        zone = ZoneInfo(name)
        for change in _changes(zone, year):
            moved = _shown(change, zone) - _shown(change - 1, zone)
            changes[change, moved, _shown(change, zone)] = name  # zones that show and do the same are one
    assert len(changes) > 30
    assert {moved > timedelta(seconds=1) for _, moved, _ in changes} == {True, False}
    for (change, moved, _), name in changes.items():
        _check_change(name, change, forward=moved > timedelta(seconds=1))


def _check_change(name: str, change: int, *, forward: bool) -> None:
    """Every five minutes around a change, as an interval and as fixed times, against what the clocks really show."""
    zone, begin, end = ZoneInfo(name), change - 3 * 3600, change + 27 * 3600
    walls = {second: _shown(second, zone) for second in range(begin - begin % 60 + 60, end, 60)}
    fitting = {second: wall for second, wall in walls.items() if wall.minute % 5 == 0}
    assert _all("*/5 * * * *", name, begin, end) == list(fitting), name

    once: dict[datetime, int] = {}
    for second, wall in fitting.items():
        once.setdefault(wall, second)  # what comes twice counts the first time
    expected = set(once.values()) | ({change} if forward else set())  # the end of the gap stands for what is in it
    assert _all("0-59/5 0-23 * * *", name, begin, end) == sorted(expected), name


def _shown(second: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None, fold=0)


def _all(text: str, zone: str, begin: int, end: int) -> list[int]:
    cron, found = cron_of(text, zone), []
    instant = cron.after(begin * SECOND)
    while instant is not None and instant < end * SECOND:
        found.append(instant // SECOND)
        instant = cron.after(instant)
    return found
