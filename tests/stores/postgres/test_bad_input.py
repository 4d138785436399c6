"""What is wrong at the start is said at once, with what to do, and without the password."""

from __future__ import annotations

import logging
import socket
import time

import psycopg
import pytest

from perdure import Perdure, StoreError
from perdure.storage.urls import opener, parse

PASSWORD = "never-shown"


async def _refused(url: str, **options) -> str:
    with pytest.raises(StoreError) as told:
        await opener(url, **options)().open()
    text = str(told.value)
    assert PASSWORD not in text
    assert "secret-word" not in text
    return text


def _with(url: str, user: str, database: str = "postgres") -> str:
    parts = psycopg.conninfo.conninfo_to_dict(url.partition("?")[0])
    return f"postgresql://{user}@{parts['host']}:{parts['port']}/{database}"


@pytest.mark.parametrize(
    ("user", "database", "expected"),
    [
        (f"keyed:{PASSWORD}", "postgres", "the password is wrong"),
        ("keyed", "postgres", "the password is wrong or missing"),
        ("barred", "postgres", "pg_hba.conf"),
        ("nobody", "postgres", "may not log in"),
        ("postgres", "not_there", "CREATE DATABASE"),
    ],
)
async def test_the_server_says_no(own_url, user, database, expected, machine):
    began = time.monotonic()
    assert expected in await _refused(_with(own_url, user, database))
    assert time.monotonic() - began < machine.seconds(5)


async def test_nobody_is_there():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        text = await _refused(f"postgresql://u:{PASSWORD}@127.0.0.1:{unused.getsockname()[1]}/db")
    assert "cannot be reached" in text
    assert "refused" in text


async def test_a_host_that_never_answers(machine):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        began = time.monotonic()
        url = f"postgresql://u:{PASSWORD}@127.0.0.1:{deaf.getsockname()[1]}/db?connect_timeout=2"
        assert "cannot be reached" in await _refused(url)
    assert time.monotonic() - began < machine.seconds(8)


async def test_a_host_without_a_name():
    assert "no.such.host.invalid" in await _refused(f"postgresql://u:{PASSWORD}@no.such.host.invalid/db")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"postgresql://u:{PASSWORD}%zz@h/db", "write %25"),
        (f"postgresql://u:{PASSWORD}/x@h/db", "%2F"),
        (f"postgresql://u:{PASSWORD}#x@h/db", "%23"),
        (f"postgresql:/u:{PASSWORD}@h/db", "it looks like postgresql://"),
        (f"postgresql://u:{PASSWORD}@h:port/db", "it looks like postgresql://"),
        ("postgresql://h/db?shema=x", "did you mean schema?"),
        ("postgresql://h/db?sslmod=x", "did you mean sslmode?"),
        ("postgresql://h/db?signals=maybe", "one of on, off"),
        ("postgresql://h/db?schema=Jobs", "lower-case"),
        ("postgresql://h/db?schema=pg_jobs", "PostgreSQL's own"),
        ('postgresql://h/db?schema=a";drop', "lower-case"),
        ("postgresql://h/db?schema=", "lower-case"),
        (f"postgresql://h/db?schema={'a' * 49}", "at most 48"),
        ("postgresql://h/db?client_encoding=latin1", "unknown option"),
        ("postgresq://h/db", "did you mean postgresql://"),
    ],
)
def test_a_url_with_a_mistake(url, expected):
    with pytest.raises(StoreError) as told:
        parse(url)
    assert expected in str(told.value)
    assert PASSWORD not in str(told.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h1:5432,h2:5433/db?target_session_attrs=read-write",
        "postgresql://[::1]:5432/db",
        "postgresql:///db?host=/run/postgresql",
        "postgres://u@h/db?schema=jobs&signals=off&pooler=on",
    ],
)
def test_a_url_that_libpq_knows(url):
    assert parse(url).server.dsn.startswith("postgresql://")


def test_the_address_is_shown_without_its_user_and_password():
    address = parse(f"postgresql://u:{PASSWORD}@h:5432/db?schema=jobs")
    assert str(address) == "postgresql://h:5432/db (schema jobs)"
    assert PASSWORD not in repr(address.server)


async def test_no_tables_yet_and_nobody_who_may_make_them(own_url):
    assert "run `perdure migrate`" in await _refused(own_url, migrate=False)


async def test_a_newer_schema(own_url, admin):
    store = opener(own_url)()
    await store.open()
    await store.close()
    schema = own_url.rpartition("=")[2]
    admin.execute(f"update {schema}.meta set value = '99' where name = 'version'")
    for migrate in (True, False):
        assert "upgrade perdure" in await _refused(own_url, migrate=migrate)


async def test_somebody_elses_tables(own_url, admin):
    schema = own_url.rpartition("=")[2]
    admin.execute(f"create schema {schema}")
    admin.execute(f"create table {schema}.jobs (id int)")
    assert "name another schema" in await _refused(own_url)


async def test_missing_privileges(own_url, admin):
    admin.execute("drop role if exists poor")
    admin.execute("create role poor login")
    try:
        poor = _with(own_url, "poor") + "?" + own_url.partition("?")[2]
        assert "lacks a privilege" in await _refused(poor)
        rich = opener(own_url)()
        await rich.open()
        await rich.close()
        assert "lacks a privilege" in await _refused(poor, migrate=False)
    finally:
        admin.execute("drop role poor")


async def test_a_read_only_server(own_url, admin):
    store = opener(own_url)()
    await store.open()
    await store.close()
    admin.execute("create role reader login superuser")
    admin.execute("alter role reader set default_transaction_read_only = on")
    try:
        reader = _with(own_url, "reader") + "?" + own_url.partition("?")[2]
        assert "takes no writes" in await _refused(reader)
    finally:
        admin.execute("drop role reader")


async def test_a_database_that_cannot_hold_every_text(own_url, admin):
    admin.execute("create database narrow encoding 'LATIN1' template template0 locale 'C'")
    try:
        assert "ENCODING 'UTF8'" in await _refused(_with(own_url, "postgres", "narrow"))
    finally:
        admin.execute("drop database narrow with (force)")


async def test_an_app_says_it_and_logs_no_password(own_url, caplog):
    app = Perdure(_with(own_url, f"keyed:{PASSWORD}"))
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError, match="password is wrong"):
        await app.jobs.count()
    assert PASSWORD not in caplog.text
