"""At its start a worker ends at once, and names the mistake, when no waiting would help. It waits for everything else."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Perdure
from perdure.errors import StoreMisconfigured
from tests.support.addresses import OF_EACH_KIND, address

# by kind of store: what is changed in its URL, and what the error names
MISTAKES = {
    "mongo": [
        ("&nonsense=1", "nonsense"),
        ("&maxPoolSize=abc", "maxPoolSize"),
        ("&w=-3", "w"),
        ("&readPreference=bogus", "readPreference"),
        ("&authMechanism=FOO", "authMechanism"),
        ("&authSource=", "authSource"),
        ("&maxPoolSize", "key=value"),
        ("&maxPoolSize=5&minPoolSize=9", "minPoolSize"),
        ("&srvServiceName=x", "srvServiceName"),
        ("&tls=true&tlsInsecure=true&tlsAllowInvalidCertificates=true", "tlsInsecure"),
        ("&tls=true&tlsCAFile=/nope.pem", "/nope.pem"),
        ("port", "[Pp]ort"),
    ],
    "postgres": [
        ("&nonsense=1", "nonsense"),
        ("&sslmode=banana", "sslmode"),
        ("&target_session_attrs=foo", "target_session_attrs"),
        ("&connect_timeout=abc", "connect_timeout"),
        ("&keepalives_idle=x", "keepalives_idle"),
        ("&service=nowhere", "service"),
        ("&hostaddr=999.1.1.1", "999.1.1.1"),
        ("&options=-c%20nonsense%3D1", "nonsense"),
        ("port", "port"),
    ],
    "valkey": [
        ("database", "database"),
        ("&nonsense=1", "nonsense"),
        ("tls&ca=/nope.pem", "/nope.pem"),
        ("port", "Redis URL"),
    ],
}
TROUBLE = {
    "mongo": ["nobody", "refused", "&replicaSet=wrong"],
    "postgres": ["nobody", "no database", "refused", "&sslmode=require"],
    "valkey": ["nobody", "refused"],
}


def changed(url: str, change: str) -> str:
    scheme, _, rest = url.partition("://")
    head, _, tail = rest.partition("/")
    user, at, where = head.rpartition("@")
    host, _, _ = where.rpartition(":")
    match change:
        case "port":
            return f"{scheme}://{user}{at}{host}:99999/{tail}"
        case "refused":
            return f"{scheme}://{user}{at}{host}:1/{tail}"
        case "nobody":
            return f"{scheme}://nobody:wrong@{where}/{tail}"
        case "no database":
            return f"{scheme}://{head}/nowhere?{tail.partition('?')[2]}"
        case "database":
            return f"{scheme}://{head}/99?{tail.partition('?')[2]}"
    if change.startswith("tls&"):
        return f"{scheme}s://{rest}{change.removeprefix('tls')}"
    return url + change


def app_at(url: str) -> Perdure:
    app = Perdure(url)

    @app.task
    async def work() -> None: ...

    return app


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [(kind, *each) for kind in OF_EACH_KIND for each in MISTAKES[kind]],
)
async def test_a_mistake_ends_the_worker(kind, change, named, tmp_path):
    app = app_at(changed(address(kind, tmp_path), change))
    with pytest.raises(StoreMisconfigured, match=named):
        async with asyncio.timeout(30):
            await app.worker().run()
    await app.close()


@pytest.mark.parametrize(("kind", "change"), [(kind, each) for kind in OF_EACH_KIND for each in TROUBLE[kind]])
async def test_what_somebody_else_may_mend_is_waited_for(kind, change, tmp_path, caplog):
    app = app_at(changed(address(kind, tmp_path), change))
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while "the store cannot be opened yet" not in caplog.text:
            assert not running.done()
            await asyncio.sleep(0.05)
        await worker.stop()
        await running
    await app.close()
