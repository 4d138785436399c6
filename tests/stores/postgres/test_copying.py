"""Long lists of usual jobs are stored by COPY, and nobody can tell."""

import asyncio
import random

import msgspec
import psycopg
import pytest

from perdure import Perdure
from perdure.core.ids import new_ids, new_stamp
from perdure.core.record import UniformJobs
from perdure.storage.contract import Claim, Filter, QueueSettings, Want
from perdure.storage.postgres.writing import fast_copy
from perdure.storage.postgres.writing.fast_copy import COPY_FROM as COPIED
from tests.support.real_servers import kinds_with_a_store, server

from .helpers import job, opened, schema_of

KINDS = [kind for kind in kinds_with_a_store() if kind.startswith("postgres")]
SECOND = 1_000_000
USUAL = {
    "backoff": '["exponential",1000000,2.0,3600000000,0]',
    "retention": '{"age":604800000000}',
}


@pytest.fixture(params=KINDS)
def url(request):
    return server(request.param).fresh()


@pytest.fixture
def copied(monkeypatch):
    """How many lists were copied, each with whether that stored it."""
    answers: list[bool] = []
    real = fast_copy.try_fast_copy

    async def store(*given, **options):
        stored = await real(*given, **options)
        answers.append(stored is not None)
        return stored

    monkeypatch.setattr("perdure.storage.postgres.writing.enqueue.try_fast_copy", store)
    return answers


def alike(payloads=None, **fields):
    payloads = payloads or [f'["{"ä€" * (n % 50)}{n}"]' for n in range(COPIED)]
    return UniformJobs(job(id="", payload="", **fields), new_ids(len(payloads)), payloads)


async def claimed_of(store, many):
    return (await store.exchange([], Claim("worker", new_stamp(), (Want(many),)))).claimed


@pytest.mark.parametrize(
    "fields",
    [
        {},
        USUAL,
        {"delay": 5 * SECOND, "priority": -3},
        {"priority": 7, "max_attempts": None, "timeout": 8 * SECOND, "lease": 9 * SECOND, "dead_retention": '"delete"'},
        {"queue": "{schema} 'q\" \\ ; --", "task": "täsk"},
        {"timeout": None},
    ],
)
async def test_jobs_are_stored_as_those_of_a_short_list_are(url, copied, fields):
    async with opened(url) as store:
        long = alike(**fields)
        short = [msgspec.structs.replace(each, id=id) for each, id in zip(long, new_ids(3), strict=False)]
        await store.enqueue(long)
        await store.enqueue(short)
        assert copied == [True]
        ours, theirs = await store.get(long.ids), await store.get([each.id for each in short])
        assert [record.payload for record in ours] == list(long.payloads)
        assert len({record.created_at for record in ours}) == 1
        for mine, other in zip(ours, theirs, strict=False):
            times = {name: getattr(mine, name) for name in ("created_at", "run_at", "rank")}
            assert other.run_at - other.created_at == mine.run_at - mine.created_at
            assert msgspec.structs.replace(other, id=mine.id, **times) == mine
        assert await store.count(Filter(states=(theirs[0].state,))) == COPIED + 3


@pytest.mark.parametrize(("table", "left_out"), [("jobs", fast_copy.JOBS), ("waiting", fast_copy.WAITING)])
async def test_what_is_left_out_is_what_the_server_fills_in(url, table, left_out):
    async with opened(url):
        with psycopg.connect(url.partition("?")[0]) as connection:
            filled_in = connection.execute(
                "select column_name, column_default from information_schema.columns "
                "where table_schema = %s and table_name = %s and column_default <> 'false'",
                (schema_of(url), table),
            ).fetchall()
    assert {name: default.partition("::")[0].strip("'") for name, default in filled_in} == {
        name: str(value) for name, value in left_out.items()
    }


async def test_a_payload_that_cannot_be_cut_off_from_the_next(url, copied):
    async with opened(url) as store:
        odd = alike(['"\x1e"', *['"plain"'] * COPIED])
        await store.enqueue(odd)
        assert copied == [False]
        assert [record.payload for record in await store.get(odd.ids)] == list(odd.payloads)


@pytest.mark.parametrize("settings", [{"max_depth": 10_000}, {"fair": True}])
async def test_bounded_and_fair_queues_are_looked_at_first(url, copied, settings):
    async with opened(url) as store:
        await store.configure(QueueSettings("default", False, **settings))
        await asyncio.gather(*(store.enqueue(alike()) for _ in range(3)))
        assert copied == [False] * 3
        assert await store.count(Filter()) == 3 * COPIED


async def test_a_list_that_is_partly_on_record_is_completed(url, copied):
    async with opened(url) as store:
        whole = alike()
        part = UniformJobs(whole.template, whole.ids[7:99], whole.payloads[7:99])
        await store.enqueue(part)
        for _ in range(2):
            assert [placed.id for placed in await store.enqueue(whole)] == list(whole.ids)
        assert copied == [False, False]  # refused by the first id that is known
        assert sorted(record.id for record in await claimed_of(store, 2 * COPIED)) == sorted(whole.ids)
        await store.enqueue(alike())  # its connection is as good as before
        assert copied == [False, False, True]


async def test_lists_keep_their_order_over_lines_that_are_cut(proxy):
    app = Perdure(proxy.url)

    @app.task
    async def noted(number: int) -> None: ...

    async with app:
        store = await app._runtime.storage()
        for _ in range(8):
            proxy.break_after_questions(random.randint(1, 6))
            handles = await app.enqueue([noted.call(number) for number in range(3 * COPIED)])
            proxy.break_after_questions(0)
            ids = [str(handle.id) for handle in handles]
            assert [record.id for record in await claimed_of(store, 4 * COPIED)] == ids
