"""A disk that is full: the enqueue is refused in plain words, what was acknowledged stays, and with room work goes on."""

from __future__ import annotations

import json
import random
import subprocess

import pytest

from perdure import StoreError
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Claim, Filter, Want

from .helpers import job, opened


@pytest.fixture
def tiny(tmp_path, admin):
    """A tablespace on a disk of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk can be mounted by root alone")
    try:
        admin.execute(f"create tablespace tiny location '{folder}'")
        yield "options=-c%20default_tablespace%3Dtiny"
        admin.execute("drop schema if exists on_tiny cascade")
        admin.execute("drop tablespace tiny")
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _incompressible() -> str:
    return json.dumps({"text": random.randbytes(50_000).hex()})


async def _fill(store, acknowledged: list[str]) -> None:
    for _ in range(1000):
        given = job(payload=_incompressible())
        await store.enqueue([given])
        acknowledged.append(given.id)


async def test_a_full_disk(own_url, tiny, admin):
    url = f"{own_url.partition('?')[0]}?schema=on_tiny&{tiny}"
    async with opened(url) as store:
        admin.execute(
            "create table on_tiny.filler tablespace tiny as select repeat(md5(g::text), 30) from generate_series(1, 3000) g"
        )
        acknowledged: list[str] = []
        with pytest.raises(StoreError, match="disk is full"):
            await _fill(store, acknowledged)
        assert acknowledged
        assert await store.count(Filter()) == len(acknowledged)
        admin.execute("drop table on_tiny.filler")
        extra = job()
        await store.enqueue([extra])
        done: list[str] = []
        while claimed := await store.claim(Claim("w", new_stamp(), (Want(20),))):
            await store.apply([decide(record, Succeeded("1")) for record in claimed])
            done += [record.id for record in claimed]
        assert sorted(done) == sorted([*acknowledged, extra.id])
