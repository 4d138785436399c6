"""What an instant makes of a schedule: missed ticks, overlap, the first and the last."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec

from perdure.core.clock import SECOND, datetime_of, instant_of
from perdure.core.record import NewJob
from perdure.schedules.schedule import LATE, MOST, Schedule, fire_due, preview, replace_rule, start_from

JOB = NewJob(id="", task="t", payload="{}", backoff="{}", retention="{}", dead_retention="{}")
NOON = instant_of(datetime(2026, 6, 1, 12, tzinfo=UTC))
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


def minutely(**said):
    return start_from(Schedule(cron="* * * * *", job=JOB, **said), NOON - 1)


def ticks(turned):
    return [(job.at - NOON) // SECOND for job in turned.jobs]


def test_nothing_is_early():
    schedule = minutely()
    assert schedule.next == NOON
    assert fire_due("s", schedule, NOON - 1).jobs == ()
    assert ticks(fire_due("s", schedule, NOON)) == [0]
    assert fire_due("s", schedule, NOON).schedule.next == NOON + MINUTE


def test_ticks_that_are_a_little_late_are_all_run_whatever_the_policy():
    for missed in ("skip", "once", "all"):
        secondly = start_from(Schedule(cron="* * * * * *", job=JOB, missed=missed), NOON - 1)
        assert ticks(fire_due("s", secondly, NOON + LATE)) == list(range(61))
        late = fire_due("s", minutely(missed=missed), NOON + LATE)
        assert ticks(late) == [0, 60]
        assert late.schedule.next == NOON + 2 * MINUTE


def test_missed_and_skipped():
    turned = fire_due("s", minutely(missed="skip"), NOON + HOUR + 30 * SECOND)
    assert ticks(turned) == [3600]  # the last minute's; the others were missed
    assert turned.schedule.next == NOON + HOUR + MINUTE
    hourly = start_from(Schedule(cron="0 * * * *", job=JOB), NOON - 1)
    turned = fire_due("s", hourly, NOON + LATE + 1)
    assert (ticks(turned), turned.schedule.next) == ([], NOON + HOUR)


def test_missed_and_made_up_for_once():
    turned = fire_due("s", minutely(missed="once"), NOON + HOUR + 30 * SECOND)
    assert ticks(turned) == [3600]  # one for all of them, the last one's own
    assert turned.schedule.next == NOON + HOUR + MINUTE
    yearly = start_from(Schedule(cron="0 12 1 6 *", job=JOB, missed="once"), NOON - 1)
    assert ticks(fire_due("s", yearly, NOON + 40 * HOUR)) == [0]


def test_missed_and_made_up_for_one_by_one_in_steps():
    schedule, found = minutely(missed="all"), []
    for size in (MOST, MOST, 41, 0):
        turned = fire_due("s", schedule, NOON + 4 * HOUR)
        assert len(turned.jobs) == size
        schedule, found = turned.schedule, found + ticks(turned)
    assert found == [60 * number for number in range(241)]


def test_a_long_outage_costs_nothing():
    for missed in ("skip", "once", "all"):
        secondly = start_from(Schedule(cron="* * * * * *", job=JOB, missed=missed), NOON - 1)
        assert (
            len(fire_due("s", secondly, NOON + 20 * 365 * 24 * HOUR).jobs)
            == {"skip": 61, "once": 1, "all": MOST}[missed]
        )


def test_no_tick_while_the_last_one_is_at_work():
    schedule = minutely(overlap="skip", missed="all")
    busy = fire_due("s", schedule, NOON + 2 * MINUTE, busy=True)
    assert (busy.jobs, busy.schedule.skipped, busy.schedule.runs) == ((), 3, 0)
    assert busy.schedule.last == NOON + 2 * MINUTE
    free = fire_due("s", schedule, NOON + 2 * MINUTE)
    assert (ticks(free), free.schedule.skipped, free.schedule.runs) == ([0], 2, 1)  # the others meet the first


def test_start_end_and_max_runs():
    schedule = minutely(start=NOON + 10 * MINUTE, end=NOON + 12 * MINUTE, missed="all")
    assert schedule.next == NOON + 10 * MINUTE
    turned = fire_due("s", schedule, NOON + HOUR)
    assert ticks(turned) == [600, 660, 720]  # both ends belong to it
    assert turned.schedule.next is None
    turned = fire_due("s", minutely(max_runs=2, missed="all"), NOON + HOUR)
    assert (ticks(turned), turned.schedule.next, turned.schedule.runs) == ([0, 60], None, 2)
    assert preview(turned.schedule, NOON + HOUR, 5) == []
    assert fire_due("s", turned.schedule, NOON + 2 * HOUR).jobs == ()
    once = fire_due("s", minutely(end=NOON + 5 * MINUTE, missed="once"), NOON + HOUR)
    assert (ticks(once), once.schedule.next) == ([300], None)


def test_a_job_knows_its_tick():
    job = fire_due("s", minutely(), NOON).jobs[0]
    assert json.loads(job.meta or "") == {"schedule": "s", "tick": "2026-06-01T12:00:00+00:00"}
    told = msgspec.structs.replace(JOB, meta='{"a":"b"}', delay=5 * SECOND)
    job = fire_due("s", msgspec.structs.replace(minutely(), job=told), NOON).jobs[0]
    assert json.loads(job.meta or "")["a"] == "b"
    assert (job.at, job.delay) == (NOON + 5 * SECOND, 0)


def test_another_saying_keeps_the_pause_the_count_and_the_tick():
    old = msgspec.structs.replace(minutely(), paused=True, runs=3, next=NOON + 5 * MINUTE)
    kept = replace_rule(old, Schedule(cron="* * * * *", job=JOB, max_runs=9), NOON + HOUR)
    assert (kept.paused, kept.runs, kept.next) == (True, 3, NOON + 5 * MINUTE)
    assert replace_rule(old, Schedule(cron="* * * * *", job=JOB, max_runs=3), NOON + HOUR).next is None
    moved = replace_rule(old, Schedule(cron="0 * * * *", job=JOB), NOON + 1)
    assert (moved.paused, moved.runs, moved.next) == (True, 3, NOON + HOUR)
    over = msgspec.structs.replace(old, next=None, runs=3, max_runs=3)
    assert replace_rule(over, Schedule(cron="* * * * *", job=JOB, max_runs=4), NOON).next == NOON + MINUTE


def test_a_preview_ends_where_the_schedule_ends():
    schedule = minutely(max_runs=3)
    assert [datetime_of(tick).minute for tick in preview(schedule, NOON, 9)] == [0, 1, 2]
    paused = msgspec.structs.replace(schedule, paused=True)
    assert preview(paused, NOON + HOUR, 1) == [NOON + HOUR + MINUTE]
