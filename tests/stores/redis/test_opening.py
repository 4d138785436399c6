"""Opening a store: servers and keys that we cannot work with are refused with words that say what to do."""

import itertools
import ssl
from contextlib import closing

import pytest

from perdure import StoreError
from perdure.storage.contract import Claim, Filter, Want
from perdure.storage.redis import health, schema
from perdure.storage.redis.connection import client as client_module
from perdure.storage.redis.connection.client import RedisClient
from perdure.storage.redis.schema import FORMAT, RedisLedger, load_migrations
from perdure.storage.urls import parse
from perdure.testing.conformance.tools import job

from .helpers import CERTIFICATE, Proxy, client, keys, opened


async def refused(url, **options):
    with pytest.raises(StoreError) as told:
        async with opened(url, **options):
            pass
    return str(told.value)


# ---- the way in ------------------------------------------------------------------------------------
async def test_nobody_there(url):
    words = await refused("redis://127.0.0.1:1/0")
    assert "redis://127.0.0.1:1/0?prefix=perdure cannot be reached" in words


async def test_no_such_host():
    assert "cannot be reached" in await refused("redis://host.invalid/0")


async def test_no_password(own):
    server = own()
    with client(server.url) as raw:
        raw.config_set("requirepass", "s3cret")
    assert "it wants a password" in await refused(server.url)


async def test_a_wrong_password(own):
    server = own()
    with client(server.url) as raw:
        raw.config_set("requirepass", "s3cret")
    words = await refused(server.url.replace("//", "//:wr0ng@"))
    assert "user name or password are wrong" in words
    assert "wr0ng" not in words
    async with opened(server.url.replace("//", "//:s3cret@")) as store:
        await store.enqueue([job()])


async def test_a_user_that_is_not_there(url):
    assert "user name or password are wrong" in await refused(url.replace("//", "//nobody:x@"))


async def test_a_database_that_is_not_there(url):
    assert "no database of this number" in await refused(url.replace("/0?", "/99?"))


async def test_databases_are_kept_apart(url):
    async with opened(url) as one, opened(url.replace("/0?", "/1?")) as other:
        await one.enqueue([job()])
        assert (await one.count(Filter()), await other.count(Filter())) == (1, 0)


async def test_a_unix_socket(own, tmp_path):
    own(unixsocket=str(tmp_path / "s"))
    async with opened(f"redis+unix://{tmp_path / 's'}?prefix=a") as store:
        await store.enqueue([job()])
        assert await store.count(Filter()) == 1


async def test_tls(own):
    """By way of a proxy that ends it: the servers of the tests speak none themselves."""
    server = own()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with Proxy(server.process.port, tls=context) as proxy:
        secure = f"rediss://127.0.0.1:{proxy.port}/0?prefix=tls"
        async with opened(f"{secure}&ca={CERTIFICATE}") as store:
            await store.enqueue([job()])
            assert await store.count(Filter()) == 1
        words = await refused(secure)
        assert "rediss://127.0.0.1" in words
        assert "certificate verify failed" in words


async def test_tls_with_a_server_that_speaks_none(url, monkeypatch):
    monkeypatch.setattr(client_module, "CONNECT_WITHIN", 0.2)
    monkeypatch.setattr(health, "RETRY_FOR", 0.0)
    words = await refused(url.replace("redis://", "rediss://"))
    assert "no answer in time; rediss:// speaks TLS, does the server?" in words


# ---- servers ---------------------------------------------------------------------------------------
async def test_a_replica(own):
    primary = own()
    replica = own()
    with client(replica.url) as raw:
        raw.replicaof("127.0.0.1", primary.process.port)
    assert "it is a read-only replica; name the primary in the URL" in await refused(replica.fresh())


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "allkeys-lfu"])
async def test_a_server_that_evicts(own, policy):
    words = await refused(own(maxmemory_policy=policy).fresh())
    assert policy in words
    assert "CONFIG SET maxmemory-policy noeviction" in words


async def test_a_policy_that_spares_keys_without_expiry(own):
    async with opened(own(maxmemory_policy="volatile-lru").fresh()) as store:
        await store.enqueue([job()])
        assert len(await store.claim(Claim("w", 1, (Want(9),)))) == 1


async def test_a_server_that_forbids_config(own, caplog):
    server = own()
    raw = client(server.url)
    raw.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~{jobs}:*", "&*", "+@all", "-config")
    url = server.url.replace("//", "//app:pw@") + "?prefix=jobs"
    with caplog.at_level("INFO", "perdure"):
        async with opened(url) as store:
            await store.enqueue([job()])
            found = await store.durability()
    assert found.grade == "C"
    assert "CONFIG is forbidden" in found.detail
    assert sum("CONFIG is forbidden" in record.message for record in caplog.records) == 1
    raw.close()


async def test_a_user_without_rights(own):
    server = own()
    raw = client(server.url)
    raw.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~other:*", "+@all")
    raw.close()
    assert "its ACL forbids" in await refused(server.url.replace("//", "//app:pw@") + "?prefix=jobs")


async def test_a_user_who_may_not_publish(own):
    """Signals are lost then, and nothing else."""
    server = own()
    raw = client(server.url)
    raw.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~{jobs}:*", "resetchannels", "+@all")
    raw.close()
    async with opened(server.url.replace("//", "//app:pw@") + "?prefix=jobs") as store:
        (placed,) = await store.enqueue([new := job()])
        await store.signal(["default"])
        assert placed.id == new.id
        assert await store.count(Filter()) == 1


# ---- keys ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["jobs", "lanes", "meta", "workers", "paused"])
async def test_foreign_keys_under_the_prefix(url, name):
    with client(url) as raw:
        raw.set(keys(url)[name], "theirs")
        words = await refused(url)
        assert f"the key {keys(url)[name]} holds a string that is not Perdure's" in words
        assert raw.get(keys(url)[name]) == b"theirs"


async def test_foreign_rows(url):
    with client(url) as raw:
        raw.hset(keys(url)["rows"], "their", "row")
    assert "is not Perdure's" in await refused(url)


async def test_a_newer_format(url):
    async with opened(url):
        pass
    with client(url) as raw:
        raw.hset(keys(url)["meta"], "format", FORMAT + 1)
    words = await refused(url)
    assert f"format version {FORMAT + 1}, and this Perdure knows only up to {FORMAT}" in words
    assert "upgrade perdure" in words


async def test_an_older_format_is_brought_up(url, monkeypatch):
    """With a second format; without migration it is refused."""
    async with opened(url) as store:
        await store.enqueue([job()])
    monkeypatch.setattr(health, "FORMAT", FORMAT + 1)
    monkeypatch.setattr(schema, "NAMES", (*schema.NAMES, "second"))
    address = parse(url).server
    ledger = RedisLedger(address)
    migrations = load_migrations(address)
    with closing(ledger):
        assert (ledger.version(), [migration.name for migration in migrations]) == (FORMAT, ["format", "second"])
    with client(url) as raw:
        words = await refused(url, migrate=False)
        assert f"format version {FORMAT}, and this Perdure needs {FORMAT + 1}: run `perdure migrate`" in words
        async with opened(url) as store:
            assert await store.count(Filter()) == 1
        assert raw.hget(keys(url)["meta"], "format") == b"%d" % (FORMAT + 1)
        raw.hset(keys(url)["meta"], "format", FORMAT)
        ledger = RedisLedger(address)
        with closing(ledger):
            assert [ledger.run(migration) for migration in (*migrations, migrations[-1])] == [False, True, False]
        async with opened(url, migrate=False) as store:
            assert await store.count(Filter()) == 1


async def test_others_open_and_fill_the_store_meanwhile(own, monkeypatch):
    """Before each of its questions in turn, somebody else opens the same empty store and enqueues."""
    server = own()
    asked = RedisClient._ask
    for number in itertools.count(1):
        url, questions = server.fresh(), 0

        async def interrupted(link, connection, packed, url=url, number=number):
            nonlocal questions
            questions += 1
            if questions == number:
                monkeypatch.setattr(RedisClient, "_ask", asked)
                async with opened(url) as other:
                    await other.enqueue([job()])
            return await asked(link, connection, packed)

        monkeypatch.setattr(RedisClient, "_ask", interrupted)
        async with opened(url) as store:
            monkeypatch.setattr(RedisClient, "_ask", asked)
            assert await store.count(Filter()) == (questions >= number)
        if questions < number:
            break
    assert number > 3


async def test_a_server_that_was_emptied_under_us(url):
    """What is enqueued afterwards stands on a store like any other."""
    async with opened(url) as store:
        with client(url) as raw:
            raw.delete(*keys(url).all)
        await store.enqueue([job()])
    async with opened(url) as store:
        assert await store.count(Filter()) == 1


async def test_without_migration_an_empty_place_is_refused(url):
    assert "run `perdure migrate`" in await refused(url, migrate=False)
    async with opened(url):
        pass
    async with opened(url, migrate=False) as store:
        assert await store.count(Filter()) == 0


# ---- durability ------------------------------------------------------------------------------------
GRADES = [
    (dict(appendonly="yes", appendfsync="always"), "B"),
    (dict(appendonly="yes", appendfsync="everysec"), "C"),
    (dict(appendonly="yes", appendfsync="no"), "D"),
    (dict(appendonly="no", save="60 1000"), "D"),
    (dict(appendonly="no", save=""), "D"),
]


async def test_grades(own, caplog):
    server = own()
    for settings, grade in GRADES:
        with client(server.url) as raw:
            for name, value in settings.items():
                raw.config_set(name, value)
        url = server.fresh()
        async with opened(url) as store:
            found = await store.durability()
            assert found.grade == grade, settings
            assert (found.remedy is None) == (grade == "B")
        caplog.clear()
        if grade == "D":
            words = await refused(url, durability="normal")
            assert found.detail in words
            assert found.remedy in words
        else:
            async with opened(url, durability="normal"):
                assert ("durability C" in caplog.text) == (grade == "C")
        if grade == "B":
            async with opened(url, durability="full"):
                pass
        else:
            assert 'durability="full" refused' in await refused(url, durability="full")
