"""`perdure doctor` on PostgreSQL: each finding, well and unwell, on a real server."""

from __future__ import annotations

import asyncio
import json
import time

import psycopg
import pytest
from click.testing import CliRunner

from perdure import Perdure
from perdure.cli.root import perdure as command
from perdure.storage.postgres.connection import health
from tests.support.waiting import wait_until

from .helpers import opened, schema_of
from .pooler import Pooler


@pytest.fixture
def store_url(own_url):
    async def make() -> None:
        async with opened(own_url):
            pass

    asyncio.run(make())
    return own_url


def found(url: str) -> dict[str, tuple[str, str, str | None]]:
    async def ask():
        async with opened(url, migrate=False) as store:
            return await store.diagnose()

    return {each.name: (each.status, each.found, each.remedy) for each in asyncio.run(ask())}


def test_all_is_well(store_url):
    told = found(store_url)
    unwell = {name for name, (status, *_) in told.items() if status != "ok"}
    assert unwell == {"role"}  # the tests connect as the superuser
    assert {"server", "pooler", "connections", "indexes", "autovacuum", "bloat", "long transactions"} < set(told)


def test_the_command_says_it(store_url, admin):
    schema = schema_of(store_url)
    run = CliRunner().invoke(command, ["doctor", "--url", store_url, "--json"])
    checks = {check["name"]: check for check in json.loads(run.stdout)["checks"]}
    assert run.exit_code == 0
    assert checks["role"]["status"] == "warn"
    assert checks["durability"]["status"] == "warn"  # the tests' server does not wait for the disk
    assert "fsync" in checks["durability"]["found"]
    assert checks["clock"]["status"] == "ok"
    admin.execute(f"drop index {schema}.waiting_ready")
    run = CliRunner().invoke(command, ["doctor", "--url", store_url])
    assert run.exit_code == 1
    assert "missing: waiting_ready" in run.stdout
    assert f'CREATE INDEX waiting_ready ON "{schema}".waiting' in run.stdout


def test_what_the_remedy_says_mends_a_missing_index(store_url, admin):
    admin.execute(f"drop index {schema_of(store_url)}.waiting_due")
    status, told, remedy = found(store_url)["indexes"]
    assert (status, told) == ("fail", "missing: waiting_due")
    admin.execute(remedy.removeprefix("run: "))
    assert found(store_url)["indexes"][0] == "ok"


def test_an_invalid_index(store_url, admin):
    admin.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::regclass",
        (f"{schema_of(store_url)}.waiting_ready",),
    )
    assert found(store_url)["indexes"][:2] == ("fail", "invalid: waiting_ready")


def test_a_table_without_its_key(store_url, admin):
    admin.execute(f"alter table {schema_of(store_url)}.workers drop constraint workers_pkey")
    assert found(store_url)["indexes"][:2] == ("fail", "no primary key: workers")


def test_no_tables_and_no_server(own_url):
    run = CliRunner().invoke(command, ["doctor", "--url", own_url])
    assert run.exit_code == 1
    assert "perdure migrate" in run.stdout
    run = CliRunner().invoke(command, ["doctor", "--url", "postgresql://127.0.0.1:1/nothing"])
    assert run.exit_code == 1
    assert "cannot be reached" in run.stdout


def test_a_long_transaction(store_url, own_server, monkeypatch):
    monkeypatch.setattr(health, "LONG", 1)
    assert found(store_url)["long transactions"][0] == "ok"
    with psycopg.connect(own_server.url) as old:
        pid = str(old.info.backend_pid)
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from pg_class")
        wait_until(lambda: found(store_url)["long transactions"][0] == "warn")
        _, told, remedy = found(store_url)["long transactions"]
    assert pid in told
    assert "pg_terminate_backend" in remedy


def test_a_prepared_transaction_and_a_slot_that_nobody_reads(own_server, store_url, admin, monkeypatch):
    monkeypatch.setattr(health, "LONG", 1)
    monkeypatch.setattr(health, "KEPT", 0)
    admin.close()
    own_server.restart(max_prepared_transactions="5", wal_level="logical")
    try:
        with psycopg.connect(own_server.url, autocommit=True) as connection:
            connection.execute("select pg_create_physical_replication_slot('forgotten', true)")
            connection.execute("begin")
            connection.execute("select txid_current()")
            connection.execute("prepare transaction 'forgotten too'")
            connection.execute("select pg_logical_emit_message(false, 'x', 'y')")
            wait_until(lambda: found(store_url)["long transactions"][0] == "warn")
            told = found(store_url)
            connection.execute("rollback prepared 'forgotten too'")
            connection.execute("select pg_drop_replication_slot('forgotten')")
        assert told["long transactions"][0] == "warn"
        assert "ROLLBACK PREPARED 'forgotten too'" in told["long transactions"][2]
        assert told["replication slots"][0] == "warn"
        assert "pg_drop_replication_slot('forgotten')" in told["replication slots"][2]
    finally:
        own_server.restart(max_prepared_transactions="0", wal_level="replica")


def test_dead_rows_that_vacuum_has_not_removed(store_url, admin):
    schema = schema_of(store_url)
    admin.execute(f"alter table {schema}.held_keys set (autovacuum_enabled = false)")
    admin.execute(f"insert into {schema}.held_keys select g::text, gen_random_uuid() from generate_series(1, 60000) g")
    admin.execute(f"delete from {schema}.held_keys")
    admin.execute("select pg_stat_force_next_flush()")
    deadline = time.monotonic() + 10
    while (told := found(store_url))["bloat"][0] == "ok" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert told["bloat"][0] == "warn"
    assert "held_keys: 60000 dead rows" in told["bloat"][1]
    assert f"VACUUM {schema}.held_keys" in told["bloat"][2]
    assert told["autovacuum"][:2] == ("warn", "off for held_keys")
    admin.execute(f"vacuum {schema}.held_keys")
    admin.execute(f"alter table {schema}.held_keys reset (autovacuum_enabled)")
    assert found(store_url)["bloat"][0] == "ok"


def test_settings_that_are_wrong(store_url, admin):
    admin.execute("alter system set autovacuum = off")
    admin.execute("alter system set synchronous_commit = off")
    admin.execute("select pg_reload_conf()")
    try:
        wait_until(lambda: found(store_url)["autovacuum"][0] == "warn")  # the server has read its settings again
        told = found(f"{store_url}&options=-c%20statement_timeout%3D1000")
        assert told["autovacuum"][0] == "warn"
        assert told["timeouts"] == ("warn", "statement_timeout is 1000 ms", told["timeouts"][2])
    finally:
        admin.execute("alter system reset all")
        admin.execute("select pg_reload_conf()")


def test_synchronous_commit_off(own_server, store_url):
    own_server.restart(fsync="on", full_page_writes="on", synchronous_commit="off")
    try:
        run = CliRunner().invoke(command, ["doctor", "--url", store_url, "--json"])
        checks = {check["name"]: check for check in json.loads(run.stdout)["checks"]}
        assert checks["durability"]["status"] == "warn"
        assert "synchronous_commit is off" in checks["durability"]["found"]
    finally:
        own_server.restart(fsync="off", full_page_writes="off", synchronous_commit="on")


def test_few_connections_left(store_url, own_server, monkeypatch):
    monkeypatch.setattr(health, "CROWDED", 0.02)
    with psycopg.connect(own_server.url), psycopg.connect(own_server.url), psycopg.connect(own_server.url):
        assert found(store_url)["connections"][0] == "warn"


def test_a_role_that_may_little(store_url, admin):
    schema = schema_of(store_url)
    admin.execute("create role modest login")
    admin.execute(f"grant usage on schema {schema} to modest")
    admin.execute(f"grant select, insert, update, delete on all tables in schema {schema} to modest")
    try:
        told = found(store_url.replace("postgres@", "modest@"))
        assert told["role"] == ("ok", "modest is no superuser", None)
        assert "GRANT pg_read_all_stats" in told["long transactions"][1]
        assert told["indexes"][0] == "ok"
    finally:
        admin.execute("drop owned by modest")
        admin.execute("drop role modest")


def test_a_pooler_in_between(store_url):
    with Pooler(store_url) as pooler:
        assert found(pooler.url)["pooler"][0] == "warn"
        assert found(f"{pooler.url}&pooler=on")["pooler"][0] == "ok"


def test_an_app_that_nobody_looked_after(store_url):
    app = Perdure(store_url)

    @app.task
    async def plain() -> None: ...

    async def put() -> None:
        async with app:
            await plain.enqueue()

    asyncio.run(put())
    run = CliRunner().invoke(command, ["doctor", "--url", store_url])
    assert "no worker was seen; waiting: 1 job" in run.stdout
