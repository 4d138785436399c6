"""A server that tests may kill and configure, and a line to it that they may cut."""

from __future__ import annotations

import psycopg
import pytest

import servers
from tests.support.proxy import Proxy
from tests.support.real_servers import decline


@pytest.fixture(scope="session")
def own_server():
    """A server of this run alone. Who changes it puts it right again."""
    try:
        server = servers.start("postgres")
    except servers.NotAvailable as missing:
        decline("postgres", missing)
    if server.process is None:
        pytest.skip("the server that the environment names is not ours to kill")
    rules = server.process.folder / "data" / "pg_hba.conf"
    rules.write_text(
        "host all keyed 127.0.0.1/32 scram-sha-256\nhost all barred 127.0.0.1/32 reject\n" + rules.read_text()
    )
    with server, psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("create role keyed login password 'secret-word'")
        admin.execute("create role barred login")
        admin.execute("select pg_reload_conf()")
        admin.close()
        yield server


@pytest.fixture
def own_url(own_server):
    return own_server.fresh()


@pytest.fixture
def admin(own_server):
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def proxy(own_url):
    with Proxy(own_url) as proxy:
        yield proxy
