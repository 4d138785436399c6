"""Unique keys under concurrency: however many ask at once, one wins, and all are told the same winner."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict

from perdure import Perdure, Unique
from tests.support.waiting import wait_until

from ..crashes.killer import Fleet, unfinished
from ..crashes.nursery import Nursery
from ..crashes.recording import Scene
from .roles import SCOPES


def _one_winner_each(acknowledged, keys: int, askers: int) -> None:
    winners, named = Counter(), defaultdict(set)
    for event in acknowledged:
        winners[event["scope"], event["key"]] += not event["duplicate"]
        named[event["scope"], event["key"]].add(event["id"])
    assert len(acknowledged) == keys * len(SCOPES) * askers
    assert set(winners.values()) == {1}
    assert {len(ids) for ids in named.values()} == {1}


def test_processes_that_ask_at_once_have_one_winner(nursery: Nursery, prepared: Scene):
    gate = prepared.folder / "gate"
    children = [
        nursery.start(
            "keys", prepared.output(f"keys-{seed}"),
            url=prepared.url, history=prepared.history, gate=str(gate), seed=seed, count=12,
        )
        for seed in range(6)
    ]  # fmt: skip
    wait_until(lambda: all("at the gate" in child.said() or child.code is not None for child in children))
    gate.touch()
    for child in children:
        child.finish()
    history = prepared.judge(drained=False)
    _one_winner_each(history.of_kind("acknowledged"), keys=12, askers=6)
    assert len(history.rows) == 12 * len(SCOPES)


def test_threads_with_loops_of_their_own_have_one_winner(scene: Scene):
    app = Perdure(scene.url)

    @app.task
    async def plain() -> None: ...

    together = threading.Barrier(6)
    failed: list[BaseException] = []

    async def ask() -> None:
        await app._runtime.storage()
        together.wait(30)
        for number in range(10):
            for scope in SCOPES:
                key = f"{scope}-{number}"
                unique = Unique(key, scope=scope, window=3600 if scope == "window" else None)
                handle = await plain.using(unique=unique).enqueue()
                scene.record("acknowledged", handle.id, key=key, scope=scope, duplicate=handle.duplicate)
        await app.close()

    def run() -> None:
        try:
            asyncio.run(ask())
        except BaseException as error:
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    _one_winner_each(scene.events("acknowledged"), keys=10, askers=6)


def test_an_active_key_passes_from_job_to_job_and_is_never_held_twice(nursery: Nursery, prepared: Scene):
    """Workers end the jobs while others ask for their keys: every move of a key is looked at by the judge."""
    gate = prepared.folder / "gate"
    gate.touch()
    fleet = Fleet(nursery, prepared, size=2)
    for round in range(3):
        children = [
            nursery.start(
                "keys", prepared.output(f"keys-{round}-{seed}"),
                url=prepared.url, history=prepared.history, gate=str(gate), seed=seed, count=4,
            )
            for seed in range(3)
        ]  # fmt: skip
        for child in children:
            child.finish()
    wait_until(lambda: unfinished(prepared) == 0)
    fleet.dismiss()
    history = prepared.judge()
    fresh = Counter(event["scope"] for event in history.of_kind("acknowledged") if not event["duplicate"])
    assert fresh["any"] == fresh["window"] == 4
    assert fresh["active"] >= 4
    assert fresh["waiting"] >= 4
