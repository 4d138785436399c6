"""A process that has no file descriptor left is told so, by every store."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perdure import StoreError
from perdure.storage.urls import parse
from tests.support.addresses import address

PROGRAM = """
import asyncio, os, resource, sys
from perdure import Perdure, PerdureError

url = sys.argv[1]

async def used(app):
    async with app:
        await app.jobs.count()

asyncio.run(used(Perdure(url)))  # everything is imported


async def without_descriptors():
    app = Perdure(url)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    left = []
    try:
        while True:
            left.append(os.dup(0))
    except OSError:
        pass
    try:
        await app.jobs.count()
    except PerdureError as error:
        told = str(error)
    else:
        told = "no error"
    for each in left:
        os.close(each)
    print(told)
    await app.jobs.count()  # it goes on by itself
    await app.close()


asyncio.run(without_descriptors())
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey", "mongo"])
def test_a_store_says_that_no_file_descriptor_is_left(kind, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address(kind, tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no file descriptor left" in done.stdout
    assert "ulimit -n" in done.stdout


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///jobs\n.db",
        "postgresql://me@localhost/jo\nbs",
        "postgresql://me@localhost/jo%0Abs",
        "postgresql://me@localhost/jobs?schema=a%0Ab",
        "postgresql://me@localhost/jobs?application_name=a%0Ab",
        "redis://localhost/0?prefix=a%0Ab",
        "redis://local%0Ahost/0",
        "mongodb://localhost/jo%0Abs",
        "mongodb://localhost/jobs?appname=a%0d%0Ab",
        "valkey://localhost/0?prefix=a\x00b",
    ],
)
def test_a_line_break_in_a_name_is_refused(url):
    with pytest.raises(StoreError, match="control character"):
        parse(url)


def test_a_password_may_have_any_character_that_is_coded():
    assert "sesame" not in str(parse("postgresql://me:sesame%0A@localhost/jobs"))


def test_scripts_of_the_store_are_read_when_it_is_imported(monkeypatch):
    from perdure.storage.redis.connection import scripts

    def refused(*given: object) -> int:
        raise OSError(24, "Too many open files")

    scripts._assemble.cache_clear()
    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr("io.open", refused)
    assert "redis.call" in scripts.script("exchange").text
