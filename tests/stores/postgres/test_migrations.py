"""Migrations, several migrators at once, columns of a newer version, and roles that may little."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from perdure import Context, Perdure, StoreError, Unique
from perdure.cli.root import perdure
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage import migrations
from perdure.storage.contract import Claim, Want
from perdure.storage.postgres.schema import TABLES, PostgresLedger, load_migrations
from perdure.storage.urls import opener, parse
from perdure.testing import ManualClock, conformance
from tests.support.real_servers import server

from .helpers import job, opened, schema_of


@pytest.fixture
def url():
    return server("postgres").fresh()


@pytest.fixture
def owner():
    with psycopg.connect(server("postgres").url, autocommit=True) as connection:
        yield connection


def run(*arguments: str):
    return CliRunner().invoke(perdure, list(arguments))


# ---- the command -----------------------------------------------------------------------------------
def test_status_dry_run_and_up(url, owner):
    before = run("migrate", "status", "--url", url)
    assert before.exit_code == 1
    assert "schema version 0 of" in before.output
    printed = run("migrate", "--dry-run", "--url", url)
    assert printed.exit_code == 0
    exists = "select count(*) from pg_namespace where nspname = %s"
    assert owner.execute(exists, (schema_of(url),)).fetchone() == (0,)
    up = run("migrate", "--url", url, "--json")
    assert [each["number"] for each in json.loads(up.output)["migrations"]] == [
        migration.number for migration in load_migrations("x")
    ]
    after = run("migrate", "status", "--url", url)
    assert (after.exit_code, "to be run" in after.output) == (0, False)
    assert "nothing to do" in run("migrate", "--url", url).output


def test_what_a_dry_run_prints_can_be_run_by_hand(url, owner):
    printed = run("migrate", "up", "--dry-run", "--url", url).stdout
    owner.execute(printed)
    assert run("migrate", "status", "--url", url).exit_code == 0

    async def use() -> None:
        async with opened(url, migrate=False) as store:
            await store.enqueue([job()])

    asyncio.run(use())


def test_several_migrators_at_once(url):
    command = [sys.executable, "-m", "perdure", "migrate", "--url", url, "--json"]
    together = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    told = []
    for process in together:
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        told.append([each["number"] for each in json.loads(out)["migrations"]])
    assert sorted(number for numbers in told for number in numbers) == [
        migration.number for migration in load_migrations("x")
    ]


async def test_apps_that_start_at_once_make_the_schema_once(url):
    async def start() -> None:
        async with opened(url) as store:
            await store.enqueue([job()])

    await asyncio.gather(*(start() for _ in range(5)))


def test_a_migration_that_fails_leaves_nothing(url, owner):
    schema = schema_of(url)
    owner.execute(f"create schema {schema}")
    owner.execute(f"create view {schema}.held_keys as select 1 as one")  # in the way of the last tables
    failed = run("migrate", "--url", url)
    assert failed.exit_code == 1
    assert "held_keys" in failed.output
    tables = "select count(*) from pg_tables where schemaname = %s"
    assert owner.execute(tables, (schema,)).fetchone() == (0,)
    owner.execute(f"drop view {schema}.held_keys")
    assert run("migrate", "--url", url).exit_code == 0


async def test_a_database_of_the_version_before_is_migrated_and_keeps_its_jobs(url, owner):
    """The second version adds a column: the jobs of the first are claimed, and it refuses to open the second."""
    schema = schema_of(url)
    text = "ALTER TABLE {schema}.queues ADD COLUMN colour text; UPDATE {schema}.meta SET value = '2' WHERE name = 'version'"
    second = migrations.Migration(2, "second", text.replace("{schema}", schema))
    both = [*load_migrations(schema), second]
    waiting = job()
    async with opened(url) as store:
        await store.enqueue([waiting])
    ledger = PostgresLedger(parse(url).server)
    assert [each.name for each in migrations.status(ledger, both).pending] == ["second"]
    assert [each.name for each in migrations.up(ledger, both, dry_run=True)] == ["second"]
    async with opened(url) as store:  # nothing was changed yet
        assert [row.id for row in await store.get([waiting.id])] == [waiting.id]
        assert [each.name for each in migrations.up(ledger, both)] == ["second"]
        assert migrations.up(ledger, both) == []
        (record,) = await store.claim(Claim("w", new_stamp(), (Want(9),)))
        (verdict,) = await store.apply([decide(record, Succeeded())])
        assert (record.id, verdict.accepted) == (waiting.id, True)
    ledger.close()
    with pytest.raises(StoreError, match="migrated by a newer Perdure"):
        await opener(url)().open()


# ---- an old worker and a newer schema --------------------------------------------------------------
SMOKE = tuple(
    """
    enqueue claim apply renew unique prune lapsed expired find holding note edges limits fairness kv continuing
    """.split()  # noqa: SIM905
)


@pytest.fixture
def widened(url, owner):
    """A schema whose every table has columns with the names of all other tables' columns, and some more."""

    async def make() -> None:
        async with opened(url):
            pass

    asyncio.run(make())
    schema = schema_of(url)
    columns = owner.execute(
        "select distinct column_name from information_schema.columns where table_schema = %s", (schema,)
    ).fetchall()
    names = {name for (name,) in columns} | {"now", "place", "keep", "began", "failed", "hold", "first_run_at", "said"}
    for table in (*TABLES, "meta"):
        for name in sorted(names):
            owner.execute(f'alter table {schema}.{table} add column if not exists "{name}" text')
    return url


async def test_an_old_worker_survives_added_columns(widened):
    """A newer version adds columns while an older one works: no statement may stumble over one."""
    cases = [case for number, case in enumerate(conformance.cases()) if case.verb in SMOKE and number % 6 == 0]
    assert len(cases) > 10
    for case in cases:
        clock = ManualClock()
        store = opener(widened, clock=clock, migrate=False, durability="relaxed")()

        async def make(store=store, clock=clock):
            await store.open()
            return store, clock

        await conformance.run(case, make)
        with psycopg.connect(server("postgres").url, autocommit=True) as owner:
            for table in TABLES:
                owner.execute(f"truncate {schema_of(widened)}.{table}")


async def test_a_worker_goes_on_while_a_column_is_added(url, owner):
    app = Perdure(url)

    @app.task
    async def plain(number: int) -> int:
        return number

    async with app, app.worker(poll=0.1):
        for number in range(4):
            handles = await app.enqueue([plain.call(each) for each in range(20)])
            for table in TABLES:
                adding = f"alter table {schema_of(url)}.{table} add column added_{number} text"
                await asyncio.to_thread(owner.execute, adding)
            for handle in handles:
                await handle.result(timeout=30)


# ---- roles -----------------------------------------------------------------------------------------
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "postgresql.md"


@pytest.fixture
def worker_url(url, owner):
    """As the guide says: the owner migrates, the worker only works."""
    schema = schema_of(url)
    name = f"worker_{schema[-12:]}"
    assert run("migrate", "--url", url).exit_code == 0
    (grants,) = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    owner.execute(grants.replace("SCHEMA perdure ", f"SCHEMA {schema} ").replace("perdure_worker", name))
    yield url.replace("postgres@", f"{name}@")
    owner.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (name,))
    owner.execute(f"drop owned by {name}")
    owner.execute(f"drop role {name}")


async def test_a_worker_with_few_rights_does_everything_a_worker_does(worker_url):
    app = Perdure(worker_url, migrate=False)

    @app.task
    async def plain(ctx: Context, number: int) -> int:
        await ctx.progress({"number": number})
        await ctx.log("a line")
        tx = await ctx.transaction()
        await tx.execute("select 1")
        return number

    async with app, app.worker(poll=0.1):
        handles = await app.enqueue([plain.call(number) for number in range(10)])
        handles.append(await plain.using(unique=Unique("k", scope="window", window=60)).enqueue(10))
        for number, handle in enumerate(handles):
            assert await handle.result(timeout=30) == number
        await app.queues.pause("default")
        await app.queues.resume("default")
        assert await app.jobs.delete(handles[0].id) == 1
    async with opened(worker_url, migrate=False) as store:
        await store.prune(100)
        found = {finding.name: finding.status for finding in await store.diagnose()}
    assert set(found.values()) == {"ok"}


async def test_a_worker_with_few_rights_says_who_must_migrate(worker_url, owner):
    owner.execute(f"update {schema_of(worker_url)}.meta set value = '0' where name = 'version'")
    with pytest.raises(StoreError, match="perdure migrate"):
        await opener(worker_url, migrate=False)().open()
