"""A job begins to wait for another one while that one ends, in another process: whoever comes first, it is let go once.

`./dev test -m slow tests/system/races/test_stranded.py` does so 1,000 times on each store (PERDURE_RACES), and in a
transaction of the caller's own where the store has them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter

import pytest

from perdure import Perdure, State
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, Completed, Continued, Died, Report, Skipped, Succeeded, decide
from perdure.core.record import Record
from perdure.storage.contract import Claim, Want
from perdure.testing.conformance.tools import job
from tests.support.addresses import ON_SERVERS, address

from ..crashes.nursery import PACKAGES, ROOT

STORES = ["sqlite", *ON_SERVERS]
ENDS = ("succeeded", "skipped", "dead", "cancelled", "continued", "in a transaction")
STEP, JITTER = 0.0005, 0.002  # seconds
TRANSACTIONAL = ("sqlite", "postgres", "mongo")
CASES = [
    (store, how) for store in STORES for how in (("own", "caller") if store.startswith(TRANSACTIONAL) else ("own",))
]

SHORT = [("sqlite", "caller"), ("postgres", "own"), ("valkey", "own"), ("mongo", "caller")]


@pytest.mark.parametrize(
    ("store", "how", "races"),
    [
        *(pytest.param(store, how, 24, id=f"{store}-{how}") for store, how in SHORT),
        *(
            pytest.param(store, how, 0, id=f"{store}-{how}-long", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
            for store, how in CASES
        ),
    ],
)
async def test_nobody_is_stranded(store, how, races, tmp_path, chance):
    short, races = races > 0, races or int(os.environ.get("PERDURE_RACES") or 1000)
    url = address(store, tmp_path)
    ends = ENDS if store.startswith(TRANSACTIONAL) else ENDS[:-1]
    async with Perdure(url) as app:
        storage = await app._runtime.storage()
        parents = await _running(storage, races)
        follower = await Follower.start(url, how)
        children, lead = [], 0.0
        for number, parent in enumerate(parents):
            child = await _race(storage, follower, parent, ends[number % len(ends)], lead, chance)
            children.append(child)
            lead += STEP if await _came_first(storage, child, parent) else -STEP
        await follower.finish()
        at_once = await _let_go(storage, children)
        while await storage.resolve_edges(storage.chunk):
            pass
        first = sum(
            [await _came_first(storage, child, parent) for child, parent in zip(children, parents, strict=True)]
        )
        await _end_chains(storage, parents)
        await _judge(storage, children, ends)
    print(
        f"RACE {store} {how}: {races:,} races, the child came first in {first:,}; {at_once:,} were let go without upkeep"
    )
    assert short or races // 10 < first < races - races // 10, "it was no race"
    if how == "own":
        assert at_once == races - sum(ends[number % len(ends)] == "continued" for number in range(races))


class Follower:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._ask, self._told = process.stdin, process.stdout

    @classmethod
    async def start(cls, url: str, how: str) -> Follower:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.system.races.follower", url, how),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(PACKAGES)])},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        follower = cls(process)
        assert await follower.heard() == "ready"
        return follower

    def tell(self, **order: object) -> None:
        self._ask.write((json.dumps(order) + "\n").encode())

    async def heard(self) -> str:
        return (await asyncio.wait_for(self._told.readline(), 60)).decode().strip()

    async def finish(self) -> None:
        self._ask.close()
        assert await self._process.wait() == 0


async def _running(storage, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        await storage.enqueue([job(lease=3_600_000_000) for _ in range(min(500, count - len(records)))])
        records += await storage.claim(Claim("race", new_stamp(), (Want(500),)))
    return records


async def _race(storage, follower: Follower, parent: Record, end: str, lead: float, chance: random.Random) -> str:
    """Both set out at once; who comes too early waits a little, about as much as made it a close race before."""
    wait = lead + chance.uniform(-JITTER, JITTER)
    run_when = "finished" if end == "dead" else "succeeded"
    follower.tell(after=parent.id, run_when=run_when, wait=max(0.0, wait))
    await asyncio.sleep(max(0.0, -wait))
    await _end(storage, parent, end)
    return await follower.heard()


async def _end(storage, parent: Record, end: str) -> None:
    said: dict[str, Report] = {
        "succeeded": Succeeded("1"),
        "skipped": Skipped("nothing to do"),
        "dead": Died("nothing can help"),
        "cancelled": Cancelled(),
        "continued": Continued((job(task="goes on"),)),
        "in a transaction": Succeeded("1"),
    }
    change = decide(parent, said[end])
    if end == "in a transaction":
        verdict = await (await storage.begin_for(parent.hold, 60_000_000)).complete(change)
    else:
        (verdict,) = await storage.apply([change])
    assert verdict.accepted


async def _came_first(storage, child: str, parent: Record) -> bool:
    follower, ended = await storage.get([child, parent.id])
    return follower.created_at < ended.finished_at


async def _let_go(storage, children: list[str]) -> int:
    return sum(record.state is not State.BLOCKED for record in await _get(storage, children))


async def _end_chains(storage, parents: list[Record]) -> None:
    """The jobs that chains went on with end, and so do the chains."""
    going_on = [record.next_id for record in await _get(storage, [parent.id for parent in parents]) if record.next_id]
    for record in await _get(storage, going_on):
        (verdict,) = await storage.apply([decide(record, Completed("1"))])
        assert verdict.accepted


async def _judge(storage, children: list[str], ends: tuple[str, ...]) -> None:
    for number, record in enumerate(await _get(storage, children)):
        cancelled = ends[number % len(ends)] == "cancelled"
        wanted = (State.CANCELLED if cancelled else State.READY, 2, 0)
        assert (record.state, record.version, record.waits) == wanted, (ends[number % len(ends)], record)
    claimed: Counter[str] = Counter()
    while records := await storage.claim(Claim("race", new_stamp(), (Want(500),))):
        claimed.update(record.id for record in records)
    ready = [child for number, child in enumerate(children) if ends[number % len(ends)] != "cancelled"]
    assert claimed == Counter(ready)


async def _get(storage, ids: list[str]) -> list[Record]:
    return [record for start in range(0, len(ids), 500) for record in await storage.get(ids[start : start + 500])]
