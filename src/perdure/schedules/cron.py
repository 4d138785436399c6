"""When a cron expression ticks, in any time zone.

Five fields (minute, hour, day, month, weekday), six with the seconds in front, or a macro such as `@daily`. cronsim reads
the fields and knows which days fit; which instants those are is decided here.

Where clocks are put forward or back, two kinds of expressions differ, as in Vixie's cron:

- **Fixed times**: neither seconds, minutes nor hours begin with `*`. Each time of day comes once. One that the gap in
  spring leaves out comes at the first instant after the gap, and once if there are several; one that comes twice in
  autumn counts the first time.
- **Intervals**: one of them begins with `*`. They go on with elapsed time: what the gap leaves out does not exist, and the
  hour that comes twice ticks twice.

Nothing here takes long, whatever the text: its length is bounded, and the search ends after fifty years.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ..core.clock import SECOND
from ..errors import InvalidCall

LONGEST = 1000  # characters of an expression
YEARS = 50  # from one tick to the next
LAST_YEAR = 9000  # calendars end at 9999

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SOME_DAY = datetime(2000, 1, 1)
_EPOCH = datetime(1970, 1, 1)
_TURN = 2 * 86_400  # no clock is put forward or back by more than a day, nor twice within two
_NEAR = timedelta(hours=36)
_INSTANT = timedelta(seconds=1)


@lru_cache(maxsize=4096)
def cron_of(text: str, timezone: str = "UTC") -> Cron:
    """The expression, read and checked. InvalidCall says what is wrong with it, or with the time zone."""
    return Cron(text, zone_of(timezone))


class Cron:
    """A cron expression in a time zone."""

    def __init__(self, text: str, zone: tzinfo) -> None:
        fields = _fields(text)
        self._zone = zone
        self._days = _simulated(text, fields[1:])
        self._hours = sorted(self._days.hours)
        self._minutes = sorted(self._days.minutes)
        self._seconds = sorted(_simulated(text, [fields[0], "*", "*", "*", "*"], "second").minutes)
        self._first = timedelta(hours=self._hours[0], minutes=self._minutes[0], seconds=self._seconds[0])
        self._fixed = not any(field.startswith("*") for field in fields[:3])
        self._asked: tuple[int, int | None] = (0, None)  # the last question: thousands may tick together

    def after(self, instant: int) -> int | None:
        """The first tick after this instant; None if there is none within fifty years."""
        second, (asked, answer) = instant // SECOND, self._asked
        if asked != second or answer is None:
            answer = self._search(second)
            self._asked = (second, answer)
        return answer

    def latest(self, earliest: int, until: int) -> int:
        """The last tick that is not after `until`, given one that is not either."""
        low, high = earliest // SECOND, until // SECOND
        while low < high:
            middle = (low + high) // 2
            following = self.after(middle * SECOND)
            if following is None or following > until:
                high = middle
            else:
                low = following // SECOND
        return low * SECOND

    def _search(self, second: int) -> int | None:
        try:
            found = self._next_fixed(second) if self._fixed else self._next_elapsed(second)
        except OverflowError:  # the end of the calendar
            return None
        return None if found is None else found * SECOND

    # -- fixed times ---------------------------------------------------------------------------------
    def _next_fixed(self, second: int) -> int | None:
        local = self._local(second)
        wall = _wall(local) + _INSTANT
        if local.fold:
            wall = self._once_only(wall)
        found = self._next_wall(wall)
        return None if found is None else self._instant(found)

    def _once_only(self, wall: datetime) -> datetime:
        """The first time from here on that does not come twice."""
        if not self._twice(wall):
            return wall
        until = _search(lambda seconds: not self._twice(wall + timedelta(seconds=seconds)), 0, _TURN)
        return wall + timedelta(seconds=until)

    def _twice(self, wall: datetime) -> bool:
        return self._offset(wall, 0) > self._offset(wall, 1)

    def _instant(self, wall: datetime) -> int:
        """When clocks show this for the first time, or would have: then the end of the gap."""
        before, after = self._offset(wall, 0), self._offset(wall, 1)
        if before >= after:
            return _seconds(wall) - before
        return _search(lambda second: self._offset_at(second) == after, _seconds(wall) - after, _seconds(wall) - before)

    # -- intervals -----------------------------------------------------------------------------------
    def _next_elapsed(self, second: int) -> int | None:
        begin = second + 1
        while True:
            wall = _wall(self._local(begin))
            target = self._next_wall(wall)
            if target is None:
                return None
            reached = begin + _seconds(target) - _seconds(wall)
            seen = min(reached, begin + _TURN)
            offset = self._offset_at(begin)
            if self._offset_at(seen) != offset:
                # the clock is moved on the way: what it shows from then on may fit earlier, or not at all
                begin = _search(lambda at, offset=offset: self._offset_at(at) != offset, begin, seen)  # type: ignore[misc]
            elif reached <= seen:
                return reached
            else:
                begin = max(seen, _seconds(target - _NEAR) - self._offset(target - _NEAR, 0))

    # -- days and times ------------------------------------------------------------------------------
    def _next_wall(self, wall: datetime) -> datetime | None:
        """The first time on the clock, from this one on, that fits the fields."""
        day = wall.date()
        if self._fits(day) and (time := self._time_from(wall)) is not None:
            return datetime.combine(day, datetime.min.time()) + time
        found = self._next_day(day)
        return None if found is None else datetime.combine(found, datetime.min.time()) + self._first

    def _time_from(self, wall: datetime) -> timedelta | None:
        hour, minute, second = wall.hour, wall.minute, wall.second
        if hour in self._days.hours:
            if minute in self._days.minutes and (later := _from(self._seconds, second)) is not None:
                return timedelta(hours=hour, minutes=minute, seconds=later)
            if (later := _from(self._minutes, minute + 1)) is not None:
                return timedelta(hours=hour, minutes=later, seconds=self._seconds[0])
        if (later := _from(self._hours, hour + 1)) is not None:
            return timedelta(hours=later, minutes=self._minutes[0], seconds=self._seconds[0])
        return None

    def _next_day(self, day: date) -> date | None:
        last = min(day.year + YEARS, LAST_YEAR)
        day += timedelta(days=1)
        while day.year <= last:
            if day.month not in self._days.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            elif self._days.match_day(day):
                return day
            else:
                day += timedelta(days=1)
        return None

    def _fits(self, day: date) -> bool:
        return day.month in self._days.months and self._days.match_day(day)

    # -- the clocks of the zone ----------------------------------------------------------------------
    def _local(self, second: int) -> datetime:
        return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=UTC).astimezone(self._zone)

    def _offset_at(self, second: int) -> int:
        return _whole(self._local(second).utcoffset())

    def _offset(self, wall: datetime, fold: int) -> int:
        return _whole(wall.replace(tzinfo=self._zone, fold=fold).utcoffset())


@lru_cache(maxsize=1024)
def zone_of(name: str) -> tzinfo:
    """The time zone of this name. InvalidCall if there is none."""
    if name == "UTC":
        return UTC
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise InvalidCall(f"timezone={str(name)[:40]!r} is no name of a time zone, such as 'Europe/Berlin'")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, a path that leads elsewhere, a folder
        raise InvalidCall(
            f"there is no time zone {name!r} here; use a name such as 'Europe/Berlin' (a system without time zones gets "
            "them with: pip install tzdata)"
        ) from None


def check_cron(text: object, timezone: object) -> Cron:
    """The expression of a caller, which may be anything."""
    if not isinstance(text, str):
        raise InvalidCall(f"cron is a text such as '0 3 * * *', not {type(text).__name__}")
    if not isinstance(timezone, str):
        raise InvalidCall(f"timezone is a name such as 'Europe/Berlin', not {type(timezone).__name__}")
    return cron_of(text, timezone)


def _fields(text: str) -> list[str]:
    """The six fields of an expression."""
    if len(text) > LONGEST:
        raise InvalidCall(f"cron has {len(text)} characters, more than {LONGEST}")
    if not text.isascii():
        raise _wrong(text, "it has characters that no field has")
    plain = text.strip().lower()
    if plain.startswith("@"):
        if plain not in MACROS:
            raise _wrong(text, f"the macros are {', '.join(MACROS)}")
        plain = MACROS[plain]
    fields = plain.split()
    if len(fields) not in (5, 6):
        raise _wrong(text, f"it has {len(fields)} field(s); five are needed, or six with the seconds in front")
    return fields if len(fields) == 6 else ["0", *fields]


def _simulated(text: str, fields: list[str], minute: str = "minute") -> CronSim:
    try:
        found = CronSim(" ".join(fields), _SOME_DAY)
    except CronSimError as error:
        raise _wrong(text, str(error).lower().replace("minute", minute)) from None
    except Exception:  # numbers that are no numbers, and combinations it never thought of
        raise _wrong(text, "a field cannot be read") from None
    return found


def _wrong(text: str, why: str) -> InvalidCall:
    shown = text if len(text) <= 60 else text[:60] + "…"
    return InvalidCall(f"cron {shown!r}: {why}; e.g. '0 3 * * *' is every day at 3, '*/10 * * * * *' every ten seconds")


def _from(values: list[int], least: int) -> int | None:
    position = bisect_left(values, least)
    return values[position] if position < len(values) else None


def _search(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number after `low`, up to `high`, for which it holds; it holds for `high`, and from the first on."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _wall(local: datetime) -> datetime:
    return local.replace(tzinfo=None, fold=0)


def _seconds(wall: datetime) -> int:
    return (wall - _EPOCH) // _INSTANT


def _whole(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // _INSTANT
