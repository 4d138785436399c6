"""A replica set of three: secondaries lead to the primary, a change of primaries is waited for, nothing is lost."""

import asyncio
import time
from contextlib import ExitStack, contextmanager

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

import servers
from perdure import Perdure, State, StoreError
from perdure.storage.contract import Filter
from servers.mongo import Mongo, mongo
from servers.process import launch
from tests.support.real_servers import decline

from .helpers import claim, job, store_at


class Member(Mongo):
    """One of several: it answers before it belongs to a set."""

    def answers(self, port):
        try:
            with self.client(port) as client:
                return bool(client.admin.command("ping"))
        except PyMongoError:
            return False

    @staticmethod
    def client(port, **options):
        return MongoClient(port=port, directConnection=True, serverSelectionTimeoutMS=2000, **options)


class Members:
    """The processes of a set, by port."""

    def __init__(self, processes):
        self.processes = {process.port: process for process in processes}

    @property
    def hosts(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.processes)

    def initiate(self):
        members = [{"_id": number, "host": f"127.0.0.1:{port}"} for number, port in enumerate(self.processes)]
        settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200}
        with Member.client(next(iter(self.processes))) as client:
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members, "settings": settings})

    def primary(self, *, of=1):
        """The port of the primary, once there is one that all who live agree upon, and so many at least are in service: one
        that still copies what the others have confirms nothing, and copies from nobody else when its source is killed."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told = [hello for port in self.processes if (hello := _hello(port)) is not None]
            named = {hello.get("primary") for hello in told}
            in_service = [hello for hello in told if hello["isWritablePrimary"] or hello["secondary"]]
            if len(in_service) >= of and len(named) == 1 and None not in named:
                if any(hello["isWritablePrimary"] for hello in told):
                    return int(named.pop().rpartition(":")[2])
            time.sleep(0.05)
        raise AssertionError("the set has no primary")

    def secondaries(self):
        primary = self.primary(of=len(self.processes))
        return [port for port in self.processes if port != primary]

    def url(self, database, port=None):
        if port is not None:
            return f"mongodb://127.0.0.1:{port}/{database}?directConnection=true"
        return f"mongodb://{self.hosts}/{database}?replicaSet=rs0"


def _hello(port):
    try:
        with Member.client(port) as client:
            return client.admin.command("hello")
    except PyMongoError:
        return None


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    try:
        program = Member(mongo(durable=False)._program)
    except servers.NotAvailable as missing:
        decline("mongo", missing)
    processes = []
    try:
        for _ in range(3):
            processes.append(launch(program, {}, tmp_path_factory.mktemp("member")))
        found = Members(processes)
        found.initiate()
        found.primary(of=3)
        yield found
    finally:
        for process in processes:
            process.close(wait=False)


@pytest.fixture
def database(request):
    return f"perdure_{abs(hash(request.node.name)):x}"


async def test_a_secondary_is_refused_and_the_primary_named(members, database):
    primary, secondary = members.primary(), members.secondaries()[0]
    with pytest.raises(StoreError, match=rf"not the primary.*the primary is 127\.0\.0\.1:{primary}.*name the members"):
        async with store_at(members.url(database, secondary)):
            pass


async def test_from_a_secondary_the_primary_is_found(members, database):
    url = f"mongodb://127.0.0.1:{members.secondaries()[0]}/{database}?replicaSet=rs0"
    async with store_at(url) as store:
        await store.enqueue([job()])
        assert len(await store.claim(claim())) == 1
        assert (await store.durability()).grade == "A"


async def test_a_server_that_is_no_longer_the_primary(members, database):
    """Named alone, it is waited for, then told as what it is; nothing of the call was done."""
    async with store_at(members.url(database, members.primary())) as store:
        kept = job()
        await store.enqueue([kept])
        await asyncio.to_thread(_step_down, members)
        store._server.retry_for = 1.0
        with pytest.raises(StoreError, match=r"not the primary|no longer the primary") as told:
            await store.enqueue([job()])
        assert isinstance(told.value, ConnectionError), "a caller may repeat it: the set may choose it again"
    async with store_at(members.url(database)) as store:
        assert [record.id for record in await store.claim(claim(9))] == [kept.id]
        assert await store.count(Filter()) == 1


async def test_too_few_members_confirm_a_write(members, database, monkeypatch):
    """It is asked for again, and told as what it is; once the others are there again it takes place, once."""
    monkeypatch.setattr(
        "perdure.storage.mongo.connection.server.MAJORITY", WriteConcern("majority", j=True, wtimeout=300)
    )
    async with store_at(members.url(database)) as store:
        store._server.retry_for = 1.0
        kept = job()
        with locked(await asyncio.to_thread(members.secondaries)):
            with pytest.raises(
                StoreError, match=r"a majority of the members .* has not confirmed .*rs\.status"
            ) as told:
                await store.enqueue([kept])
            assert isinstance(told.value, ConnectionError), "a caller may repeat it"
        store._server.retry_for = 20.0
        await store.enqueue([kept])
        assert [record.id for record in await store.claim(claim(9))] == [kept.id]


@contextmanager
def locked(ports):
    """These members are alive, vote, and write nothing."""
    with ExitStack() as open_clients:
        clients = [open_clients.enter_context(Member.client(port)) for port in ports]
        try:
            for client in clients:
                client.admin.command("fsync", lock=True)
            yield
        finally:
            for client in clients:
                client.admin.command("fsyncUnlock")


@pytest.mark.parametrize("how", ["steps down", "is killed"])
async def test_work_goes_on_with_the_next_primary(members, database, how):
    app = Perdure(members.url(database))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(poll=0.2):
        handles = [await double.enqueue(n) for n in range(10)]
        before = await asyncio.to_thread(members.primary, of=3)
        if how == "steps down":
            await asyncio.to_thread(_step_down, members)
        else:
            await asyncio.to_thread(members.processes[before].kill)
        handles += await asyncio.gather(*(double.enqueue(n) for n in range(10, 40)))
        assert [await handle.result(timeout=60) for handle in handles] == [2 * n for n in range(40)]
        assert await asyncio.to_thread(members.primary) != before
        assert await app.jobs.count(state=State.SUCCEEDED) == 40
    if how == "is killed":
        await asyncio.to_thread(members.processes[before].run, before, {})


def _step_down(members):
    """The primary gives up its place, and another has it."""
    before = members.primary()
    with Member.client(before) as client:
        client.admin.command("replSetStepDown", 6, secondaryCatchUpPeriodSecs=5)
    while members.primary() == before:
        time.sleep(0.05)
