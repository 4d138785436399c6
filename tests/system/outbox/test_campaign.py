"""Transactions that commit and roll back while relays are killed: every committed job is there once, and no other is."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.testing import drain

from .scene import Scene

SMALL, LARGE = 400, 100_000
SOURCE = str(Path(__file__).resolve().parents[3] / "src")


@pytest.mark.parametrize("pair", [("sqlite", "valkey"), ("postgres", "sqlite")], ids="-to-".join)
@pytest.mark.parametrize(
    "transactions", [SMALL, pytest.param(LARGE, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_every_committed_job_once_and_no_other(tmp_path, pair, transactions):
    scene = Scene(tmp_path, *pair)
    kept = write(scene, transactions, kills=3 if transactions == SMALL else 200)
    drain(scene.app, timeout=transactions / 50 + 30)
    jobs, cursor = [], None
    while cursor is not None or not jobs:
        page = scene.app.jobs.sync.find(limit=500, cursor=cursor)
        jobs += [job.id for job in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(jobs) == len(set(jobs))
    assert set(jobs) == set(kept)
    assert scene.rows() == []
    scene.app.sync.close()


def write(scene, transactions, kills):
    """Enqueue, commit 70 of 100, and kill a relay every now and then; the ids that were committed."""
    chance = random.Random(transactions)
    kept = []
    scene.app.queues.sync.list()
    relay = start(scene)
    try:
        for number in range(transactions):
            commit = chance.random() < 0.7
            with scene.transaction(commit=commit) as database:
                job = scene.task.using(connection=database).sync.enqueue(number)
            kept += [job.id] if commit else []
            if number % (transactions // kills) == transactions // kills - 1:
                until_something_moved(scene)
                relay.send_signal(signal.SIGKILL)
                relay.wait()
                relay = start(scene)
    finally:
        relay.kill()
        relay.wait()
    return kept


def start(scene):
    command = [sys.executable, "-m", "perdure", "relay", "--url", scene.target, "--outbox", scene.outbox]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stderr=subprocess.DEVNULL)


def until_something_moved(scene):
    """So that the kill meets a relay at work."""
    until = time.monotonic() + 30
    while scene.app.jobs.sync.count() == 0 and time.monotonic() < until:
        time.sleep(0.05)
