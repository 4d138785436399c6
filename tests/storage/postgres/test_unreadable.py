"""One row that holds what no version of Perdure writes hides no other, and stops no reader."""

from __future__ import annotations

import msgspec
import psycopg

from perdure.ids import new_stamp
from perdure.storage.contract import Carried, Claim, Filter, Want

from ...real_servers import server
from .helpers import job, opened, schema_of

LONG_ENOUGH = 3600 * 1_000_000


async def spoil(store, id, **flaws):
    (carried,) = [each for each in await store.export(None, 100) if each.record.id == id]
    await store.restore([Carried(msgspec.structs.replace(carried.record, **flaws))])


async def test_listings_mark_it_and_show_the_others():
    url = server("postgres").fresh()
    async with opened(url) as store:
        jobs = [job() for _ in range(3)]
        await store.enqueue(jobs)
        await spoil(store, jobs[0].id, errors="broken")
        with psycopg.connect(url.partition("?")[0], autocommit=True) as raw:
            raw.execute(f"update {schema_of(url)}.waiting set state = 'strange' where id = %s", (jobs[1].id,))
        raw.close()
        wanted = {jobs[0].id: "unreadable: errors", jobs[1].id: "unreadable: state", jobs[2].id: None}
        found, _ = await store.find(Filter(), 10, None)
        assert {record.id: record.reason for record in found} == wanted
        assert [record.reason for record in await store.get([each.id for each in jobs])] == [*wanted.values()]


async def test_the_reaper_and_expiry_pass_over_it():
    async with opened(server("postgres").fresh()) as store:
        bad, good = job(lease=1), job(lease=1)
        late, soon = job(queue="late", expires=1), job(queue="late", expires=1)
        await store.enqueue([bad, good, late, soon])
        await store.exchange((), Claim("w", new_stamp(), (Want(2, queues=("default",)),)))
        await spoil(store, bad.id, retention="broken")
        await spoil(store, late.id, retention="broken")
        assert [record.id for record in await store.lapsed(10, LONG_ENOUGH)] == [good.id]
        assert [record.id for record in await store.expired(10)] == [soon.id]
