"""What is wrong with a server, and what it does in the middle of things: a clear error or retries, and nothing lost."""

import asyncio
import socket
import subprocess
import threading
from contextlib import contextmanager

import pytest
from pymongo import MongoClient, errors

import servers
from perdure import InvalidCall, Perdure, State, StoreError
from perdure.core.lifecycle import RunnerLost, Succeeded, decide
from perdure.storage.contract import Filter
from perdure.storage.mongo.address import address_of
from perdure.storage.mongo.connection import health
from perdure.storage.mongo.connection.errors import Unreachable, error_for
from perdure.storage.urls import opener
from servers.mongo import mongo
from tests.support.real_servers import decline
from tests.support.waiting import stays

from .helpers import claim, database_of, fresh, held, job, store_at

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")


def started(**settings):
    try:
        return servers.start("mongo", settings=settings)
    except servers.NotAvailable as missing:
        decline("mongo", missing)


async def refused(url, **options):
    """What is said when the store is opened."""
    store = opener(url, **options)()
    with pytest.raises(StoreError) as error:
        await store.open()
    return str(error.value)


# ---- opening ---------------------------------------------------------------------------------------
async def test_a_host_that_is_not_there():
    told = await refused("mongodb://me:sesame@127.0.0.1:1/jobs?serverSelectionTimeoutMS=300")
    assert "cannot be reached" in told
    assert "sesame" not in told
    assert "mongodb://127.0.0.1:1/jobs" in told


async def test_a_standalone_server_is_told_how_to_become_a_replica_set():
    hello = {"isWritablePrimary": True, "maxWireVersion": 17}
    with pytest.raises(StoreError, match=r"mongod --replSet rs0.*rs\.initiate\(\)"):
        health.check(hello, address_of("mongodb://h/jobs"))


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        ({"isreplicaset": True}, r"rs\.initiate"),
        ({"setName": "rs0", "isWritablePrimary": False, "primary": "b:1"}, "the primary is b:1"),
        ({"msg": "isdbgrid"}, "sharded"),
        ({"setName": "rs0", "isWritablePrimary": True, "maxWireVersion": 9}, "older than MongoDB 5.0"),
    ],
)
def test_servers_that_cannot_keep_the_promises(hello, said):
    with pytest.raises(StoreError, match=said):
        health.check(hello, address_of("mongodb://h/jobs"))


async def test_a_real_standalone_server(tmp_path):
    with _standalone(tmp_path) as port:
        told = await refused(f"mongodb://127.0.0.1:{port}/jobs")
    assert "standalone" in told
    assert "--replSet" in told


async def test_a_wrong_password():
    with started() as server:
        port = server.process.port
        with MongoClient(port=port, directConnection=True) as client:
            client.admin.command("createUser", "me", pwd="sesame", roles=["readWriteAnyDatabase"])
        told = await refused(f"mongodb://me:wrong@127.0.0.1:{port}/jobs?authSource=admin&directConnection=true")
        assert "password is wrong" in told
        assert ":wrong" not in told
        right = f"mongodb://me:sesame@127.0.0.1:{port}/jobs?authSource=admin&directConnection=true"
        async with store_at(right) as store:
            await store.enqueue([job()])
            assert await store.count(Filter()) == 1


async def test_users_that_may_not(tmp_path):
    """A server that asks who is there: nobody, one who may only read, and one who may do what is needed."""
    secret = tmp_path / "key"
    secret.write_text("sesame" * 10)
    secret.chmod(0o400)
    with started(keyFile=str(secret)) as server:
        port = server.process.port
        with MongoClient(port=port, directConnection=True) as client:
            client.admin.command("createUser", "root", pwd="s", roles=["root"])
        with MongoClient(f"mongodb://root:s@127.0.0.1:{port}/?directConnection=true") as client:
            for role in ("read", "readWrite"):
                client.jobs.command("createUser", role, pwd="s", roles=[role])
        told = await refused(f"mongodb://127.0.0.1:{port}/jobs")
        assert "it wants a user: write one into the URL, mongodb://user:password@host/database" in told
        told = await refused(f"mongodb://read:s@127.0.0.1:{port}/jobs")
        assert "it needs readWrite on the database" in told
        assert "lsid" not in told
        async with store_at(f"mongodb://readWrite:s@127.0.0.1:{port}/jobs") as store:
            await store.enqueue([job()])
            assert await store.count(Filter()) == 1
            assert await store._in_use().abandoned.end(), "it may ask what lies idle of its own"
            await store.abort_transactions(store.open_transactions())


async def test_collections_of_somebody_else():
    url = fresh()
    with MongoClient(url) as client:
        database_of(client, url)["perdure_jobs"].insert_one({"mine": 1})
        told = await refused(url)
        assert "were not made by it (perdure_jobs)" in told
        assert database_of(client, url).list_collection_names() == ["perdure_jobs"]


async def test_a_schema_that_another_process_begins_to_make_is_ours():
    """A collection is there a moment before its first document, which says whose it is."""
    url = fresh()
    with MongoClient(url) as client:
        database_of(client, url).create_collection("perdure_meta")
        async with store_at(url) as store:
            await store.enqueue([job()])
            assert await store.count(Filter()) == 1


async def test_an_index_of_somebody_else_is_in_the_way():
    url = fresh()
    async with store_at(url):
        pass
    with MongoClient(url) as client:
        jobs = database_of(client, url)["perdure_jobs"]
        jobs.drop_index("perdure_marks")
        marked = {"marks": {"$exists": True}}
        jobs.create_index({"marks": 1, "created_at": -1, "_id": -1}, name="mine", partialFilterExpression=marked)
    told = await refused(url)
    assert "in the way" in told
    assert "mine" in told


async def test_a_missing_index_is_made_again_or_told_of():
    url = fresh()
    async with store_at(url):
        pass
    with MongoClient(url) as client:
        jobs = database_of(client, url)["perdure_jobs"]
        jobs.drop_index("perdure_marks")
        assert "perdure migrate" in await refused(url, migrate=False)
        async with store_at(url):
            assert "perdure_marks" in jobs.index_information()


async def test_a_newer_schema():
    url = fresh()
    async with store_at(url):
        pass
    with MongoClient(url) as client:
        database_of(client, url)["perdure_meta"].update_one({"_id": "schema"}, {"$set": {"version": 99}})
    assert "newer Perdure" in await refused(url)


async def test_no_schema_and_no_migration():
    assert "has no collections of Perdure: run `perdure migrate`" in await refused(fresh(), migrate=False)


async def test_two_migrators_at_once():
    url = fresh()
    stores = [opener(url)() for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await stores[0].enqueue([job()])
    assert [await store.count(Filter()) for store in stores] == [1] * 4
    for store in stores:
        await store.close()


# ---- in the middle ---------------------------------------------------------------------------------
async def test_a_job_that_is_too_large():
    async with store_at() as store:
        with pytest.raises(InvalidCall, match="larger than the 16 MB"):
            await store.enqueue([job(), job(payload='"' + "x" * (17 << 20) + '"')])
        assert await store.count(Filter()) == 0


async def test_a_job_that_is_too_large_to_be_carried():
    """Other stores may hold such a job. It is named, and is no mistake of whoever asks for the move."""
    async with store_at("memory://") as source, store_at() as store:
        large = job(payload='"' + "x" * (17 << 20) + '"')
        await source.enqueue([job(), large])
        with pytest.raises(StoreError, match=rf"job {large.id} \(task\): .*larger than the 16 MB"):
            await store.restore(await source.export(None, 9))
        assert await store.count(Filter()) == 0


async def test_a_result_that_is_too_large():
    async with store_at() as store:
        record = await held(store, payload='"' + "x" * (9 << 20) + '"')
        with pytest.raises(InvalidCall, match="larger than the 16 MB"):
            await store.apply([decide(record, Succeeded('"' + "y" * (9 << 20) + '"'))])
        (seen,) = await store.get([record.id])
        assert seen.state is State.RUNNING
        assert (await store.apply([decide(record, Succeeded('"small"'))]))[0].accepted


async def test_many_large_jobs_in_one_call():
    """More than one command may hold."""
    async with store_at() as store:
        text = '"' + "x" * (1 << 20) + '"'
        jobs = [job(payload=text) for _ in range(10)]
        await store.enqueue(jobs)
        claimed = await store.claim(claim(50))
        assert [record.payload == text for record in claimed] == [True] * 10
        verdicts = await store.apply([decide(record, Succeeded(text)) for record in claimed])
        assert all(verdict.accepted for verdict in verdicts)


def doubling(url):
    app = Perdure(url)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    return app, double


async def test_a_server_that_is_killed_and_comes_back():
    """Enqueues and a worker go on by themselves; what was acknowledged is there."""
    with started() as server:
        app, double = doubling(server.fresh())
        async with app, app.worker(poll=0.2):
            handles = [await double.enqueue(n) for n in range(10)]
            restart = threading.Thread(target=_killed_and_restarted, args=[server])
            restart.start()
            handles += await asyncio.gather(*(double.enqueue(n) for n in range(10, 30)))
            results = [await handle.result(timeout=60) for handle in handles]
            restart.join()
        assert results == [2 * n for n in range(30)]


def _killed_and_restarted(server):
    server.kill()
    server.restart()


async def test_a_primary_that_steps_down_in_the_middle():
    with started() as server:
        app, double = doubling(server.fresh())
        async with app, app.worker(poll=0.2):
            handles = [await double.enqueue(n) for n in range(10)]
            with MongoClient(server.url) as client:
                client.admin.command("replSetStepDown", 2, force=True)
            handles += await asyncio.gather(*(double.enqueue(n) for n in range(10, 30)))
            assert [await handle.result(timeout=60) for handle in handles] == [2 * n for n in range(30)]


async def test_a_server_that_is_gone_for_good_is_told_of_in_time():
    with started() as server:
        url = f"{server.fresh()}&serverSelectionTimeoutMS=200"
        async with store_at(url) as store:
            await store.enqueue([job()])
            server.kill()
            store._server.retry_for = 0.5
            with pytest.raises(StoreError, match=r"cannot be reached|connection broke") as error:
                await store.enqueue([job()])
            assert isinstance(error.value, ConnectionError), "a caller may repeat it"


def _standalone(folder):
    """A server without a replica set: the command of the run's servers without its --replSet."""

    @contextmanager
    def running():
        try:
            program = mongo(durable=False)
        except servers.NotAvailable as missing:
            decline("mongo", missing)
        program.prepare(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = program.command(folder, port, {})
        at = command.index("--replSet")
        del command[at : at + 2]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                with MongoClient(port=port, serverSelectionTimeoutMS=20_000) as client:
                    client.admin.command("ping")
                yield port
            finally:
                process.kill()

    return running()


async def test_what_a_dead_process_left_open_keeps_nobody_waiting():
    """A transaction belongs to a session, not to a connection: the server would keep it, and its locks, for a minute."""
    url = fresh()
    async with store_at(url) as dying, store_at(url) as other:
        record = await held(other)
        async with dying._server.begin() as session:
            jobs = dying._server.database["perdure_jobs"]
            await jobs.update_one({"_id": record.id}, {"$set": {"progress": "1"}}, session=session)
            await other.abort_transactions(dying.open_transactions())
            async with asyncio.timeout(15):
                (verdict,) = await other.apply([decide(record, RunnerLost())])
            assert verdict.accepted
        (seen,) = await other.get([record.id])
        assert (seen.state, seen.progress) == (State.READY, None)
        assert other.open_transactions().isdisjoint(dying.open_transactions())


def test_a_server_that_is_just_coming_back_is_not_a_wrong_url():
    """The driver says so of a deployment of which it knows no member that bears data yet."""
    starting = errors.ConfigurationError("Sessions are not supported by this MongoDB deployment")
    assert isinstance(error_for(starting, "here"), Unreachable)
    assert not isinstance(error_for(errors.ConfigurationError("w must be an integer"), "here"), Unreachable)


async def test_pause_waits_for_a_claim_that_began_before_it(monkeypatch):
    """Its snapshot does not know of the pause, so it still takes jobs."""
    url = fresh()
    async with store_at(url) as store, store_at(url) as other:
        await store.enqueue([job() for _ in range(3)])
        here = store._in_use()
        commit, begun, goes_on = here.commit, asyncio.Event(), asyncio.Event()

        async def late(*arguments):
            begun.set()
            await goes_on.wait()
            return await commit(*arguments)

        monkeypatch.setattr(here, "commit", late)
        claiming = asyncio.create_task(store.claim(claim(2)))
        await begun.wait()
        pausing = asyncio.create_task(other.pause("default", True))
        await stays(lambda: not pausing.done(), 0.3)
        goes_on.set()
        assert len(await claiming) == 2
        await pausing
        assert await other.claim(claim(3)) == []
