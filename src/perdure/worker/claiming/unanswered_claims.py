"""Hands back strays: jobs that a claim took although its answer never arrived, so that nobody runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from ...core.lifecycle import HandedBack, decide
from ...errors import StoreError
from ...observe import log
from ...storage.contract import Claim, ExchangeResult, Storage
from ..service import retry_pause

ASKED_AFTER = (0.0, 1.0, 5.0)  # seconds: a server may carry out a claim after its connection broke
TRIED_FOR = 120.0  # seconds that a store may be out of reach


async def hand_back_strays(store: Storage, worker: str, stamps: Iterable[int], reason: str) -> None:
    """Hand back what is held under these stamps."""
    for stamp in stamps:
        strays = await store.recover_claim(worker, stamp)
        changes = [decide(record, HandedBack(reason)) for record in strays]
        for start in range(0, len(changes), store.chunk):
            await store.apply(changes[start : start + store.chunk])


async def hand_back_unanswered(store: Storage, claim: Claim, asking: asyncio.Future[ExchangeResult] | None) -> None:
    """Hand back the jobs of a claim whose caller is gone. `asking` is the call itself, if it is still under way: after its
    answer, one question is enough."""
    answered = asking is not None and await _ends_well(asking)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for after in ASKED_AFTER[:1] if answered else ASKED_AFTER:
        await asyncio.sleep(began + after - loop.time())
        pause = retry_pause()
        while True:
            try:
                await hand_back_strays(store, claim.worker, [claim.stamp], "handed back: its claim was given up")
                break
            except StoreError as error:
                if loop.time() - began > TRIED_FOR:
                    log.service_failed("handing back what an abandoned claim took", error)
                    return
            await asyncio.sleep(pause.next())


async def _ends_well(asking: asyncio.Future[ExchangeResult]) -> bool:
    await asyncio.wait([asking])
    return not asking.cancelled() and asking.exception() is None


_tasks: set[asyncio.Task[None]] = set()  # an event loop keeps no reference to its tasks


def run_in_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run work that goes on after its caller is gone."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task
