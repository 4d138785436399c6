"""History in pieces: made ahead of time, dropped as a whole when nothing in them is needed."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Died, Retried, Succeeded, decide
from perdure.core.retention import Retention
from perdure.storage.contract import Claim, Filter, KvWrite, Want
from perdure.storage.urls import opener, parse
from perdure.testing.conformance.tools import job
from tests.support.real_servers import kinds_with_a_store, server

KINDS = [kind for kind in kinds_with_a_store() if kind.startswith("postgres")]
DAY = timedelta(days=1)
TEN_MINUTES = timedelta(minutes=10)
WEEK = 7 * 86_400 * SECOND


@pytest.fixture(params=KINDS)
def url(request):
    return server(request.param).fresh()


@asynccontextmanager
async def opened(url, clock=None):
    store = opener(url, clock=clock, durability="relaxed")()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def run(url, statement):
    address = parse(url).server
    with psycopg.connect(address.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.replace("SCHEMA", address.schema))
        return cursor.fetchall() if cursor.description else []


def pieces(url, kind="outcomes"):
    rows = run(
        url,
        "select relname from pg_inherits join pg_class on pg_class.oid = inhrelid "
        f"where inhparent = 'SCHEMA.{kind}'::regclass order by 1",
    )
    return [name for (name,) in rows]


def day(moment):
    return moment.strftime("%Y%m%d")


def id_of(moment, number=0):
    """An id as it would have been made then."""
    milliseconds = int(moment.timestamp() * 1000)
    text = f"{milliseconds:012x}7000{0x8000_0000_0000_0000 + number:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def make_piece(url, moment):
    """The piece of a day that is over, as it stands when that day has passed."""
    starts = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    for kind in ("jobs", "outcomes"):
        run(
            url,
            f"create table SCHEMA.{kind}_{day(starts)} partition of SCHEMA.{kind} for values from "
            f"(SCHEMA.first_id('{starts.isoformat()}')) to (SCHEMA.first_id('{(starts + DAY).isoformat()}'))",
        )


async def ended(store, id, retention, said=Succeeded, **fields):
    await store.enqueue([job(id=id, retention=retention.text(), **fields)])
    (record,) = await store.claim(Claim("w", new_stamp(), (Want(1),)))
    await store.apply([decide(record, said() if said is Succeeded else said("bad"))])
    return record


async def test_today_and_the_days_to_come_have_a_piece(url):
    async with opened(url) as store:
        today = datetime.now(UTC)
        made = [f"outcomes_{day(today + number * DAY)}" for number in range(2)]
        assert pieces(url) == [*made, "outcomes_rest"]
        await store.prune(1)
        assert pieces(url) == [*made, f"outcomes_{day(today + 2 * DAY)}", "outcomes_rest"]
        assert [name.removeprefix("jobs_") for name in pieces(url, "jobs")] == [
            name.removeprefix("outcomes_") for name in pieces(url)
        ]


async def test_jobs_lie_in_the_piece_of_their_day(url):
    async with opened(url) as store:
        await store.enqueue([job()])
        await ended(store, id_of(datetime.now(UTC) - 3 * DAY), Retention.keep())
        today = f"jobs_{day(datetime.now(UTC))}"
        assert run(url, f"select count(*) from SCHEMA.{today}") == [(1,)]
        assert run(url, "select count(*) from SCHEMA.jobs_rest") == [(1,)]


async def test_a_piece_is_dropped_when_all_in_it_have_been_kept_long_enough(url):
    async with opened(url) as store:
        old = datetime.now(UTC) - 3 * DAY
        make_piece(url, old)
        for number in range(5):
            record = await ended(store, id_of(old, number), Retention.keep(age=0.001 if number else 0.002))
        grow_older(url, TEN_MINUTES)
        await store.enqueue([job()])
        assert await store.prune(2) == 5
        assert f"outcomes_{day(old)}" not in pieces(url)
        assert f"jobs_{day(old)}" not in pieces(url, "jobs")
        assert await store.get([record.id]) == [None]
        assert await store.count(Filter()) == 1


async def test_a_piece_stays_while_one_job_in_it_ended_within_ten_minutes(url):
    old = datetime.now(UTC) - 3 * DAY
    async with opened(url) as store:
        make_piece(url, old)
        record = await ended(store, id_of(old), Retention.keep(age=0))
        assert await store.prune(10) == 1
        assert (await store.get([record.id]))[0].hidden
        assert f"outcomes_{day(old)}" in pieces(url)
    grow_older(url, TEN_MINUTES)
    async with opened(url) as store:  # another worker: this one looks again in an hour
        await store.prune(10)
        assert await store.get([record.id]) == [None]


async def test_of_two_who_prune_at_once_none_removes_what_the_other_has_hidden(url, monkeypatch):
    async with opened(url) as store, opened(url) as other:
        record = await ended(store, id_of(datetime.now(UTC)), Retention.keep(age=0))
        take_away = other._upkeep._take_away

        async def take_away_late(connection, ids, now):
            assert ids == [record.id]
            assert await store.prune(10) == 1
            return await take_away(connection, ids, now)

        monkeypatch.setattr(other._upkeep, "_take_away", take_away_late)
        assert await other.prune(10) == 0
        assert (await store.get([record.id]))[0].hidden


@pytest.mark.parametrize("left", ["waiting", "running", "kept", "for ever", "dead", "followed"])
async def test_a_piece_stays_while_one_job_in_it_is_needed(url, left):
    async with opened(url) as store:
        old = datetime.now(UTC) - 3 * DAY
        make_piece(url, old)
        needed = id_of(old, 9)
        match left:
            case "waiting":
                await store.enqueue([job(id=needed, delay=WEEK)])
            case "running":
                await store.enqueue([job(id=needed)])
                await store.claim(Claim("w", new_stamp(), (Want(1),)))
            case "kept":
                await ended(store, needed, Retention.keep(age=3600.0))
            case "for ever":
                await ended(store, needed, Retention.keep())
            case "dead":
                await ended(store, needed, Retention.keep(age=0.001), said=Died)
            case "followed":
                await ended(store, needed, Retention.keep(age=0.001))
                await store.enqueue([job(after=f'["{needed}"]', waits=1, delay=WEEK)])
        await ended(store, id_of(old, 1), Retention.keep(age=0.001))
        grow_older(url, TEN_MINUTES)
        assert await store.prune(10) == 1  # the brief one goes by itself, and the one that is needed does not
        assert f"outcomes_{day(old)}" in pieces(url)
        (record,) = await store.get([needed])
        assert record is not None
        if left == "dead":
            await store.apply([decide(record, Retried())])
            assert (await store.claim(Claim("w", new_stamp(), (Want(1),))))[0].id == needed


async def test_what_belongs_to_dropped_jobs_goes_with_them(url):
    async with opened(url) as store:
        old = datetime.now(UTC) - 3 * DAY
        make_piece(url, old)
        parent = await ended(store, id_of(old, 1), Retention.keep(age=0.001))
        await ended(store, id_of(old, 2), Retention.keep(age=0.001), after=f'["{parent.id}"]', waits=1)
        await store.kv_write([KvWrite("step", "a", "1", job=parent.id), KvWrite("step", "b", "1")])
        grow_older(url, TEN_MINUTES)
        assert await store.prune(10) == 2
        assert [row.name for row in await store.kv_read("step")] == ["b"]
        assert run(url, "select count(*) from SCHEMA.edges") == [(0,)]


async def test_long_kept_jobs_of_a_piece_that_stays_go_a_day_late(url):
    """By the server's own clock, which drops pieces too: with a clock that is moved by hand nobody waits for those."""
    async with opened(url) as store:
        await ended(store, id_of(datetime.now(UTC)), Retention.keep(age=2 * 86_400))
        grow_older(url, 2 * DAY + timedelta(seconds=1))
        assert await store.prune(10) == 0
    async with opened(url) as store:  # another worker: this one looks again in a day
        grow_older(url, DAY)
        assert await store.prune(10) == 1


def grow_older(url, by):
    micros = by // timedelta(microseconds=1)
    run(url, f"update SCHEMA.outcomes set finished_at = finished_at - {micros}, prune_at = prune_at - {micros}")
