"""The scripts: every key declared, heads that tell what goes in and out, lists of any length, and memory."""

import re
from importlib.resources import files

import pytest

import perdure.storage.redis as package
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, HandedBack, Succeeded, decide
from perdure.storage.contract import Claim, Filter, Note, Want
from perdure.storage.redis.connection.scripts import BASICS, FIRST, PARTS, SHARED, script
from perdure.storage.redis.keys import TYPES
from perdure.testing import ManualClock

from .helpers import claim, client, jobs, opened

LUA = {file.name: file.read_text() for file in (files(package) / "lua").iterdir() if file.name.endswith(".lua")}
PIECES = {f"{part}.lua" for parts in (BASICS, SHARED, *FIRST.values(), *PARTS.values()) for part in parts}
VERBS = sorted(name.removesuffix(".lua") for name in LUA if name not in PIECES)
_CALL = re.compile(r"(?<!p)call\('(\w+)'(?:, ([^,)]+))?")
_KEYLESS = {"TIME"}


def test_every_command_names_a_declared_key():
    declared = set(re.findall(r"\w+", " ".join(re.findall(r"^local ([\w, ]+) = KEYS", LUA["constants.lua"], re.M))))
    assert len(declared) == len(TYPES)
    bound = {"key", "index"}  # parameters that stand for one of them
    for name, text in LUA.items():
        for command, key in _CALL.findall(text):
            assert command in _KEYLESS or key in declared | bound, f"{name}: {command} {key}"


def test_keys_come_in_the_order_of_their_names():
    numbers = re.findall(r"KEYS\[(\d+)\]", LUA["constants.lua"])
    assert [int(number) for number in numbers] == list(range(1, len(TYPES) + 1))


@pytest.mark.parametrize("verb", VERBS)
def test_heads(verb):
    head = LUA[f"{verb}.lua"].split("\n\n")[0]
    for word in ("-- KEYS ", "-- ARGV ", "-- returns "):
        assert word in head, f"{verb}.lua does not say {word.strip('- ')}"


@pytest.mark.parametrize("verb", VERBS)
async def test_the_server_takes_it(url, verb):
    with client(url) as raw:
        assert raw.script_load(script(verb).text) == script(verb).digest


# ---- long lists ------------------------------------------------------------------------------------
async def test_lists_as_long_as_a_chunk_and_longer(url):
    async with opened(url) as store:
        new = jobs(store.chunk)
        await store.enqueue(new)
        assert len(await store.enqueue(jobs(9500))) == 9500  # longer ones are the caller's to cut, and no harm
        claimed = await store.claim(claim(10_000))
        assert len(claimed) == 10_000  # more than Lua can unpack
        assert all(verdict.accepted for verdict in await store.renew([record.hold for record in claimed]))
        assert all(verdict.accepted for verdict in await store.note([Note(record.hold, "1") for record in claimed]))
        assert len(await store.recover_claim("w1", claimed[0].stamp)) == 10_000
        assert None not in await store.get([record.id for record in claimed])
        changes = [decide(record, Succeeded('"x"')) for record in claimed]
        assert all(verdict.accepted for verdict in (await store.exchange(changes)).verdicts)
        assert await store.count(Filter()) == 10_000


async def test_promotions_and_cancels_of_many(url):
    async with opened(url) as store:
        new = jobs(1200, at=1)
        await store.enqueue(new[:500])
        await store.enqueue(new[500:1000])
        await store.enqueue(jobs(900, delay=3_600_000_000))
        waiting = [record for record in await store.get([job.id for job in new[:1000]]) if record]
        assert len(waiting) == 1000
        verdicts = await store.apply([decide(record, Cancelled()) for record in waiting])
        assert all(verdict.accepted for verdict in verdicts)
        assert (await store.queues())[0].depth == 900


# ---- memory ----------------------------------------------------------------------------------------
async def test_memory_of_a_job(own):
    server = own()
    async with opened(server.fresh()) as store:
        with client(server.url) as raw:
            await store.enqueue(jobs(500))
            before = raw.info("memory")["used_memory"]
            for _ in range(20):
                await store.enqueue(jobs(500, payload='["' + "x" * 96 + '"]'))
            waiting = (raw.info("memory")["used_memory"] - before) / 10_000
            claimed = []
            while batch := await store.claim(claim(500)):
                claimed += batch
                await store.apply([decide(record, Succeeded()) for record in batch])
            ended = (raw.info("memory")["used_memory"] - before) / 10_000
            print(f"a waiting job takes {waiting:.0f} bytes, an ended one {ended:.0f}")
            assert waiting < 700
            assert ended < 900


# ---- jobs that cannot run --------------------------------------------------------------------------
async def test_jobs_that_cannot_run_cost_a_claim_nothing(own):
    """Thousands of jobs of another task, routing key or queue, paused, scheduled, blocked, under limits or expired stand in
    front."""
    server = own()
    async with opened(server.fresh(), clock=(clock := ManualClock())) as store:
        await store.enqueue(jobs(5))
        want = Want(5, queues=("default", "held"), tasks=("task",), routing=None)
        alone = await _cost(server, store, want, 5)
        await store.pause("held", True)
        for fields in (
            {"task": "another", "priority": 9},
            {"routing_key": "elsewhere", "priority": 9},
            {"queue": "other", "priority": 9},
            {"queue": "held", "priority": 9},
            {"delay": 3_600_000_000},
            {"waits": 1},
            {"limits": '[["k",1,null,null]]', "priority": 9},
        ):
            for _ in range(20):
                await store.enqueue(jobs(500, **fields))
        await store.enqueue(jobs(500, expires=1, priority=9))
        clock.advance(1)
        await store.enqueue(jobs(5))
        crowded = await _cost(server, store, want, 5)
        print(f"{alone:.0f} µs alone, {crowded:.0f} µs in front of 70,500 others")
        assert crowded < 3 * alone + 2000


async def _cost(server, store, want, wanted):
    """The server's own time for a claim, in microseconds: the least of several."""
    costs = []
    await store.exchange((), Claim("w1", new_stamp(), (Want(0),)))  # from now on the server knows the script
    with client(server.url) as raw:
        for _ in range(5):
            raw.config_resetstat()
            given = await store.exchange((), Claim("w1", new_stamp(), (want,)))
            costs.append(raw.info("commandstats")["cmdstat_evalsha"]["usec"])
            assert len(given.claimed) == wanted
            await store.apply([decide(record, HandedBack()) for record in given.claimed])
    return min(costs)
