"""Fair turns order the writes of processes, and nobody waits for ever for who has been stopped."""

import asyncio
import fcntl
import os

import pytest

from holdfast.storage.contract import Filter
from holdfast.storage.sqlite import turns

from .helpers import job, store_at


@pytest.fixture
def turn_of_another(tmp_path):
    """The lock as another process has it: taken through a file description of its own."""
    (tmp_path / "jobs.db-holdfast").mkdir()
    file = os.open(tmp_path / "jobs.db-holdfast" / "turn", os.O_RDWR | os.O_CREAT)
    yield file
    os.close(file)


async def test_a_write_waits_for_its_turn(tmp_path, turn_of_another):
    async with store_at(tmp_path / "jobs.db") as store:
        fcntl.flock(turn_of_another, fcntl.LOCK_EX)
        writing = asyncio.ensure_future(store.enqueue([job()]))
        done, _ = await asyncio.wait([writing], timeout=0.3)
        assert not done
        fcntl.flock(turn_of_another, fcntl.LOCK_UN)
        await asyncio.wait_for(writing, 5)


async def test_who_keeps_his_turn_for_too_long_is_passed_by(tmp_path, turn_of_another, monkeypatch, caplog):
    monkeypatch.setattr(turns, "PATIENCE", 0.2)
    async with store_at(tmp_path / "jobs.db") as store:
        fcntl.flock(turn_of_another, fcntl.LOCK_EX)
        await asyncio.wait_for(store.enqueue([job()]), 5)
        assert await store.count(Filter()) == 1
        assert "kept its turn" in caplog.text
        fcntl.flock(turn_of_another, fcntl.LOCK_UN)
        await store.enqueue([job()])
        assert caplog.text.count("kept its turn") == 1
