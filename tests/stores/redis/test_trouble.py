"""Trouble on the way: forgotten scripts, cut connections, restarts, failovers, a full memory. Nothing is lost or doubled."""

import asyncio

import pytest
from redis.exceptions import ResponseError

from perdure import Context, Perdure, StoreError
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, HandedBack, Succeeded, decide
from perdure.storage.contract import Filter, Note
from perdure.testing.conformance.tools import assert_accepted, assert_repeated, ids
from tests.support.waiting import eventually

from .helpers import Proxy, claim, client, jobs, keys, opened


# ---- scripts ---------------------------------------------------------------------------------------
async def test_a_script_flush(url):
    async with opened(url) as store:
        await store.enqueue(jobs(2))
        with client(url) as raw:
            raw.script_flush()
        (record,) = await store.claim(claim())
        with client(url) as raw:
            raw.script_flush()
        assert_accepted((await store.apply([decide(record, Succeeded())]))[0], "a word after a script flush")
        assert await store.count(Filter(states=(State.SUCCEEDED,))) == 1


async def test_a_busy_server(own):
    """Somebody's endless script: commands wait for its end."""
    server = own(lua_time_limit="10")
    async with opened(server.fresh()) as store:
        with client(server.url) as raw, client(server.url) as other:
            raw.ping()
            loop = asyncio.get_running_loop()
            blocked = loop.run_in_executor(None, _endless, raw)
            await eventually(lambda: _is_busy(other))
            loop.call_later(0.5, other.script_kill)
            assert len(await store.enqueue(jobs(3))) == 3
            await blocked


def _is_busy(raw):
    try:
        return not raw.ping()
    except ResponseError as busy:
        return "BUSY" in str(busy)


def _endless(raw):
    with pytest.raises(ResponseError, match=r"(?i)kill"):
        raw.eval("while true do end", 0)


# ---- connections -----------------------------------------------------------------------------------
async def test_connections_that_are_cut_between_commands(url):
    async with Proxy(_port(url)) as proxy, opened(proxy.url(url)) as store:
        await store.enqueue(jobs(3))
        proxy.cut()
        await asyncio.sleep(0.01)
        assert len(await store.claim(claim(2))) == 2
        proxy.cut()
        assert await store.count(Filter()) == 3


async def test_an_enqueue_whose_answer_is_lost_is_stored_once(url):
    async with Proxy(_port(url)) as proxy, opened(proxy.url(url)) as store:
        new = jobs(3)
        proxy.swallows = True
        asyncio.get_running_loop().call_later(0.3, setattr, proxy, "swallows", False)
        placed = await store.enqueue(new)
        assert [(each.id, each.duplicate) for each in placed] == [(each.id, False) for each in new]
        assert await store.count(Filter()) == 3


async def test_a_word_whose_answer_is_lost_is_repeated(url):
    async with Proxy(_port(url)) as proxy, opened(proxy.url(url)) as store:
        await store.enqueue(jobs(1))
        (record,) = await store.claim(claim())
        proxy.swallows = True
        asyncio.get_running_loop().call_later(0.3, setattr, proxy, "swallows", False)
        assert_repeated((await store.apply([decide(record, Succeeded("1"))]))[0], "a word that the store heard before")


async def test_a_claim_whose_answer_is_lost_is_not_repeated(url):
    """It would take twice. The claimer asks what it holds."""
    async with Proxy(_port(url)) as proxy, opened(proxy.url(url)) as store:
        await store.enqueue(jobs(3))
        await store.claim(claim(0))  # from now on the server knows the script
        asked = claim(2)
        proxy.swallows = True
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.claim(asked)
        proxy.swallows = False
        held = await store.recover_claim(asked.worker, asked.stamp)
        assert len(held) == 2
        assert {record.attempt for record in held} == {1}
        assert await store.count(Filter(states=(State.READY,))) == 1


async def test_log_lines_whose_answer_is_lost_stand_there_once(url):
    async with Proxy(_port(url)) as proxy, opened(proxy.url(url)) as store:
        await store.enqueue(jobs(1))
        (record,) = await store.claim(claim())
        await store.note([Note(record.hold, None, ("first",))])  # from now on the server knows the script
        proxy.swallows = True
        with pytest.raises(StoreError):
            await store.note([Note(record.hold, None, ("said",))])
        proxy.swallows = False
        assert await store.log(record.id) == ["first", "said"]


async def test_a_cancelled_call_leaves_the_store_usable(url):
    async with Proxy(_port(url)) as proxy, opened(proxy.url(url)) as store:
        await store.enqueue(jobs(1))
        proxy.silent = True
        asked = claim()
        call = asyncio.create_task(store.claim(asked))
        await eventually(lambda: proxy.kept)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        proxy.silent = False
        assert await store.count(Filter()) == 1
        held = await store.recover_claim(asked.worker, asked.stamp)
        assert len(held) + len(await store.claim(claim())) == 1


async def test_nobody_there_any_more(own):
    server = own(appendfsync="always")  # a server that syncs every second may lose its last job when it is killed
    async with opened(server.fresh()) as store:
        (new,) = jobs(1)
        await store.enqueue([new])
        server.kill()
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.get([new.id])
        with pytest.raises(ConnectionError, match="cannot be reached"):  # whoever enqueues may go on trying
            await store.enqueue(jobs(1))
        server.restart()
        assert (await store.get([new.id]))[0].id == new.id


# ---- restarts and failovers ------------------------------------------------------------------------
async def test_a_restart_in_the_middle(own):
    server = own(appendfsync="always")
    async with opened(server.fresh()) as store:
        new = jobs(20)
        await store.enqueue(new)
        records = await store.claim(claim(10))
        await store.apply([decide(record, Succeeded("1")) for record in records[:5]])
        await store.pause("default", True)
        server.kill()
        server.restart()
        assert [verdict.accepted for verdict in await store.renew([record.hold for record in records])] == [
            False
        ] * 5 + [True] * 5
        verdicts = await store.apply([decide(record, Succeeded("1")) for record in records])
        assert [verdict.repeated for verdict in verdicts] == [True] * 5 + [False] * 5
        assert await store.claim(claim(9)) == []
        await store.pause("default", False)
        assert ids(await store.claim(claim(99))) == ids(new[10:])


async def test_a_server_that_loads_its_data(own):
    server = own(appendfsync="always")
    url = server.fresh()
    async with opened(url) as store:
        for _ in range(40):
            await store.enqueue(jobs(500))
        before = await store.count(Filter())
        server.kill()
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(None, server.restart)
        assert await _eventually(store) == before
        await starting


async def _eventually(store):
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.count(Filter())
            except StoreError:
                await asyncio.sleep(0.01)


async def test_a_primary_that_became_a_replica_and_back(own):
    primary, other = own(), own()
    async with opened(primary.fresh()) as store:
        await store.enqueue(jobs(2))
        with client(primary.url) as raw:
            raw.replicaof("127.0.0.1", other.process.port)
            with pytest.raises(ConnectionError, match="read-only replica"):
                await store.enqueue(jobs(1))
            loop = asyncio.get_running_loop()
            loop.call_later(0.3, raw.replicaof, "NO", "ONE")
            await store.enqueue(jobs(3))  # waits for the failover


# ---- a full memory ---------------------------------------------------------------------------------
async def test_a_full_memory_takes_no_jobs_and_ends_those_it_has(own):
    server = own()
    url = server.fresh()
    async with opened(url) as store:
        waiting = jobs(50, payload='"' + "x" * 1000 + '"')
        await store.enqueue(waiting)
        held = await store.claim(claim(20))
        with client(url) as raw:
            raw.config_set("maxmemory", "1mb")
            rows_before = raw.hlen(keys(url)["rows"])
            with pytest.raises(StoreError, match="its memory is full"):
                await store.enqueue(jobs(10))
            assert raw.hlen(keys(url)["rows"]) == raw.hlen(keys(url)["jobs"]) == rows_before
            assert raw.zcard(keys(url)["created"]) == 50
        assert all(verdict.accepted for verdict in await store.renew([record.hold for record in held]))
        words = [decide(record, Succeeded("1")) for record in held[:10]]
        words += [decide(record, HandedBack()) for record in held[10:]]
        given = await store.exchange(words, claim(5))
        assert all(verdict.accepted for verdict in given.verdicts)
        assert len(given.claimed) == 5
        (cancelled,) = await store.get([waiting[-1].id])
        assert_accepted((await store.apply([decide(cancelled, Cancelled())]))[0], "a cancel")
        await store.pause("default", True)
        await store.prune(100)
        with client(url) as raw:
            raw.config_set("maxmemory", "0")
        await store.pause("default", False)
        assert len(await store.enqueue(jobs(1))) == 1
        assert await store.count(Filter(states=(State.SUCCEEDED,))) == 10


async def test_a_full_memory_under_a_handler_is_not_charged(own):
    url = own().fresh()
    app = Perdure(url)

    @app.task
    async def other() -> None: ...

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        with client(url) as raw:
            raw.config_set("maxmemory", "1mb" if ctx.job.attempt == 1 else "0")
        await other.enqueue()

    async with app, app.worker(poll=0.05):
        handle = await work.enqueue()
        await handle.result(timeout=20)
        job = await app.jobs.get(handle.id)
    assert (job.attempt, job.failures, job.errors) == (2, 0, ())


# ---- too many clients ------------------------------------------------------------------------------
@pytest.mark.parametrize("database", [0, 3])
async def test_a_server_that_takes_no_more_clients(own, database):
    """It says so before anybody speaks, and hangs up; whoever has a connection goes on."""
    server = own()
    url = server.fresh().replace("/0?", f"/{database}?")
    async with opened(url) as store, opened(url) as late:
        await store.enqueue(jobs(1))
        with client(url) as raw:
            before = len(raw.client_list())
            await late._client._close_idle()
            while (left := len(raw.client_list())) == before:
                await asyncio.sleep(0)
            raw.config_set("maxclients", left)
            with pytest.raises(
                ConnectionError, match=r"takes no more clients.*`maxclients`.*max number of clients reached"
            ):
                await late.enqueue(jobs(1))
            with pytest.raises(StoreError, match="takes no more clients"):
                async with opened(url):
                    pass
            await store.enqueue(jobs(1))
            asyncio.get_running_loop().call_later(0.3, raw.config_set, "maxclients", "100")
            await late.enqueue(jobs(3))  # waits until it is let in
        assert await store.count(Filter()) == 5


async def test_a_server_that_takes_only_clients_of_its_own_machine():
    """Protected mode: what it says unasked is told, and not that the connection was lost."""

    async def greet(_, writer):
        writer.write(b"-DENIED Redis is running in protected mode because no password is set.\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreError, match=r"protected mode: give it a password"):
            async with opened(f"redis://127.0.0.1:{port}/3"):
                pass


def _port(url):
    return int(url.partition("/0?")[0].rpartition(":")[2])
