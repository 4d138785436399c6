"""kill -9 of supervised workers and of the store's server while graphs run: every follower is released once, after all it
waits for, and nobody is left behind.

The long form, `./dev test -m slow tests/system/crashes/test_flow_kills.py`, fans out to PERDURE_FAN jobs (100,000) and kills
PERDURE_KILLS times (100). Both forms kill the server while the fan runs; a file has none.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import servers
from perdure.core.job import WAITING, State
from perdure.storage.contract import Filter
from perdure.testing.checker import History, check, read_events
from tests.support.addresses import ON_SERVERS, address
from tests.support.real_servers import decline

from .conftest import FILES, SCHEMES
from .crew import Crew
from .databases import database_of
from .flows import Flows
from .recording import Tally

UNFINISHED = Filter(states=(*sorted(WAITING), State.RUNNING))
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
SHORT = [pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("store", "fan", "kills"),
    [
        *(pytest.param(name, 80, 4, id=name, marks=SHORT) for name in SCHEMES),
        *(pytest.param(name, None, None, id=f"{name}-long", marks=LONG) for name in ("sqlite", *ON_SERVERS)),
    ],
)
async def test_followers_are_released_once_whoever_is_killed(store, fan, kills, tmp_path, chance):
    short = fan is not None
    fan = fan or int(os.environ.get("PERDURE_FAN") or 100_000)
    kills = kills or int(os.environ.get("PERDURE_KILLS") or 100)
    history_file = str(tmp_path / "history.jsonl")
    tally = Tally(history_file)
    with _store(store, tmp_path) as (url, server):
        flows = Flows(url, tmp_path)
        database = database_of(url)
        watch = short and store != "sqlite+apsw" and database.watches_moves  # that takes SQLite off its fast path
        async with flows.app as app:
            storage = await app._runtime.storage()
            if watch:
                database.prepare(watch=True)
            crew = Crew(tmp_path, url, concurrency=6 if short else 50)
            began = time.monotonic()
            try:
                apart = max(1, fan // (2 * kills))
                killing = asyncio.create_task(crew.campaign(storage, Tally(history_file), chance, kills, apart))
                await flows.enqueue(fan, chance)
                enqueued = time.monotonic() - began
                await _until(lambda: _killed(crew, 1), crew)
                flows.open.touch()
                if server is not None:
                    await _kill_under_the_fan(server, tally, crew)
                await _until(
                    lambda: _all_dead(app), crew, 90 + fan / 100
                )  # they come to their turn among all the others
                await _until(lambda: _killed(crew, kills - 1 if short else 1), crew)
                flows.mercy.touch()
                assert await flows.retry_the_dead() == 3
                await _drained(storage, crew, 90 + fan / 10)
                drained = time.monotonic() - began
                killing.cancel()
            finally:
                crew.kill_all()
            rows = await _rows(storage)
        moves = _moves(url) if watch else ()
    history = History(read_events(history_file), rows, moves=moves)
    check(history)
    _released_once(history)
    results = {row["id"]: row["result"] for row in rows}
    assert {id: json.loads(results[id] or "null") for id in flows.expected} == flows.expected
    assert crew.kills >= 3
    print(
        f"FLOW {store}: fan {fan:,}, {len(rows):,} jobs, {len(history.of_kind('began')):,} attempts begun, "
        f"{crew.runners_killed} runners and {crew.workers_killed} whole workers killed; enqueued after {enqueued:.1f} s, "
        f"all over after {drained:.1f} s"
    )


@contextmanager
def _store(kind: str, folder: Path):
    """The address of an empty store, and its server, which is ours to kill; None for a file."""
    if kind in FILES:
        yield address(kind, folder), None
        return
    try:
        server = servers.start(kind, durable=True, never_theirs=True, within=folder)
    except servers.NotAvailable as missing:
        decline(kind, missing)
    with server:
        yield server.fresh(), server


async def _kill_under_the_fan(server: servers.Server, tally: Tally, crew: Crew) -> None:
    """Kill the server when the root has ended and its followers begin, and start it again."""
    begun = tally.count("began")

    async def some_followers_began() -> bool:
        return tally.count("began") > begun + 10

    await _until(some_followers_began, crew)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.restart)


def _released_once(history: History) -> None:
    """Each row says by its version how often it moved: when it was enqueued, released and retried, and two times for each
    claim."""
    retried = Counter(event["id"] for event in history.of_kind("retried"))
    for row in history.rows:
        moves = 1 + (row["after"] is not None) + retried[row["id"]] + 2 * row["attempt"]
        assert (row["state"], row["version"], row["waits"]) == ("succeeded", moves, 0), row


async def _killed(crew: Crew, often: int) -> bool:
    return crew.kills >= often


async def _all_dead(app) -> bool:
    return await app.jobs.count(task="mortal", state=State.DEAD) == 3


async def _drained(storage, crew: Crew, within: float) -> None:
    async def done() -> bool:
        return not await storage.count(UNFINISHED)

    await _until(done, crew, within)


async def _until(done, crew: Crew, within: float = 90.0) -> None:
    deadline = time.monotonic() + within
    while not await done():
        assert time.monotonic() < deadline, crew.said()[-5000:]
        await asyncio.sleep(0.05)


async def _rows(storage) -> list[dict]:
    rows: list[dict] = []
    after = None
    while page := await storage.export(after, 500):
        rows += [msgspec.structs.asdict(each.record) for each in page]
        after = (page[-1].record.created_at, page[-1].record.id)
    return rows


def _moves(url: str) -> list[dict]:
    return sorted(database_of(url).rows("moves"), key=lambda move: move["number"])
