"""What somebody else wrote into the keys of a store: one bad value stops nothing else, and is set aside."""

from struct import pack

import pytest

from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.core.record import unreadable_fields
from perdure.storage.contract import Filter, KvWrite
from perdure.testing import ManualClock

from .helpers import claim, client, jobs, keys, opened

LONG_ENOUGH = 3_600_000_000


def raw_id(job):
    return bytes.fromhex(job.id.replace("-", ""))


ROWS = {
    "empty": b"",
    "one byte": b"\x03",
    "foreign": b"foreign",
    "unknown state": pack("<BHI", 9, 0, 1),
    "running without a hold": pack("<BHI", 4, 0, 1),
    "largest version": pack("<BHI", 3, 0, 2**32 - 1),
}


@pytest.mark.parametrize("spoiled", ROWS.values(), ids=ROWS)
async def test_a_claim_passes_over_a_row_that_cannot_be_read(url, spoiled):
    async with opened(url) as store:
        bad, good = jobs(2)
        await store.enqueue([bad, good])
        with client(url) as raw:
            raw.hset(keys(url)["rows"], raw_id(bad), spoiled)
        assert [record.id for record in await store.claim(claim(9))] == [good.id]
        (record,) = await store.get([bad.id])
        assert record.state is State.DEAD
        assert unreadable_fields(record.reason)
        assert [row.id for row in await store.unreadable()] == [bad.id]
        found, _ = await store.find(Filter(states=(State.DEAD,)), 9, None)
        assert [record.id for record in found] == [bad.id]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300, 1.5])
async def test_a_lease_that_is_no_whole_number(url, number):
    """Written as it is, it would end the script in the middle and leave the others' jobs half moved."""
    async with opened(url) as store:
        bad, good = jobs(2)
        await store.enqueue([bad, good])
        with client(url) as raw:
            row = raw.hget(keys(url)["rows"], raw_id(bad))
            raw.hset(keys(url)["rows"], raw_id(bad), row[:7] + pack("<d", number) + row[15:])
        (record,) = await store.claim(claim(9))
        assert record.id == good.id
        (verdict,) = await store.apply([decide(record, Succeeded())])
        assert verdict.accepted
        (record,) = await store.get([bad.id])
        assert unreadable_fields(record.reason) == ("lease",)


@pytest.mark.parametrize("spoiled", [b"nonsense", b"9223372036854775807", b"1.5"])
@pytest.mark.parametrize("name", ["counts", "depths"])
async def test_counters_that_are_no_numbers_are_counted_anew(url, name, spoiled):
    async with opened(url) as store:
        await store.enqueue(jobs(3))
        with client(url) as raw:
            for field in raw.hkeys(keys(url)[name]):
                raw.hset(keys(url)[name], field, spoiled)
        await store.enqueue(jobs(2))
        await store.lapsed(10, LONG_ENOUGH)
        assert await store.count(Filter()) == 5
        assert [row.depth for row in await store.queues()] == [5]


@pytest.mark.parametrize("name", ["lanes", "leases", "counts", "created", "limits", "heads", "unread"])
async def test_a_key_of_another_type_is_moved_away(url, name):
    async with opened(url) as store:
        before = jobs(3)
        await store.enqueue(before)
        with client(url) as raw:
            raw.delete(keys(url)[name])
            raw.set(keys(url)[name], "foreign")
        after = jobs(2)
        await store.enqueue(after)
        await store.lapsed(10, LONG_ENOUGH)
        claimed = {record.id for record in await store.claim(claim(9))}
        assert claimed == {job.id for job in (*before, *after)}
        (row,) = [row for row in await store.unreadable() if row.where == name]
        with client(url) as raw:
            assert raw.get(row.id) == b"foreign"
    async with opened(url):  # and a store whose other keys are ours opens
        pass


@pytest.mark.parametrize("score", [1, -1, float("inf"), float("-inf")])
async def test_a_member_with_a_score_hides_no_lane(url, score):
    async with opened(url) as store:
        new = jobs(3)
        await store.enqueue(new)
        with client(url) as raw:
            raw.zadd(keys(url)["lanes"], {b"nonsense": score, b"r\x01zzz": score})
        assert len(await store.claim(claim(9))) == 3


async def test_one_job_that_stands_twice_is_claimed_once(url):
    async with opened(url) as store:
        await store.enqueue(jobs(1))
        with client(url) as raw:
            (member,) = raw.zrange(keys(url)["lanes"], 0, -1)
            at = member.rindex(b"\x00-\x00") + 3
            raw.zadd(keys(url)["lanes"], {member[:at] + b"\x00" + member[at + 1 :]: 0})
        assert len(await store.claim(claim(9))) == 1


async def test_an_index_of_leases_that_is_wrong(url):
    clock = ManualClock()
    async with opened(url, clock=clock) as store:
        await store.enqueue(jobs(2))
        held = await store.claim(claim(2))
        with client(url) as raw:
            raw.zadd(keys(url)["leases"], {raw_id(held[0]): 0, b"nonsense": 0})
        assert await store.lapsed(10, LONG_ENOUGH) == [], "a lease that is not over is not reaped"
        with client(url) as raw:
            raw.zadd(keys(url)["leases"], {raw_id(held[1]): float("inf")})
        clock.advance(3600)
        await store.prune(10)
        assert len(await store.lapsed(10, LONG_ENOUGH)) == 2, "one that is said never to end comes back"


@pytest.mark.parametrize("score", [float("inf"), float("-inf")])
async def test_a_lease_without_an_end(url, score):
    async with opened(url) as store:
        await store.enqueue(jobs(1))
        await store.claim(claim(1))
        with client(url) as raw:
            raw.zadd(keys(url)["leases"], {b"nonsense": score})
            raw.hset(keys(url)["meta"], "given", "nonsense")
        assert isinstance(await store.next_lapse(), int)
        await store.lapsed(10, LONG_ENOUGH)


async def test_a_job_without_its_row(url):
    async with opened(url) as store:
        bad, good = jobs(2)
        await store.enqueue([bad, good])
        with client(url) as raw:
            raw.hdel(keys(url)["rows"], raw_id(bad))
        await store.inspect(100)
        (record,) = await store.get([bad.id])
        assert record.state is State.DEAD
        assert record.payload == bad.payload
        assert [record.id for record in await store.claim(claim(9))] == [good.id]


@pytest.mark.parametrize("score", [-1.0, 7.0])
async def test_a_foreign_score_hides_no_entry_of_a_job(url, score):
    """The server finds members by their bytes only while all have one score: a job would not find the steps it has done."""
    async with opened(url) as store:
        (job,) = jobs(1)
        await store.enqueue([job])
        names = [f"{job.id} {number}" for number in range(9)]
        await store.kv_write([KvWrite("step", name, "1", job=job.id) for name in names])
        with client(url) as raw:
            raw.zadd(keys(url)["kv_index"], dict.fromkeys((b"", b"j", b"n\xff", b"zz"), score))
        assert [entry.name for entry in await store.kv_read("step", job=job.id)] == names
        assert [entry.name for entry in await store.kv_read("step")] == names
