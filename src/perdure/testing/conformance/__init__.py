"""The conformance suite: cases that every store must pass.

A case is an `async def case_…(store, clock)`. It uses only the storage contract (`perdure.storage.contract`) and raises
AssertionError with the promise that the store broke. There is one file per verb or topic. No case needs a test framework.

To test a store of your own, write one function that returns a *fresh, open, empty* store and its clock, and run every
case with it:

    import asyncio
    from perdure.testing import ManualClock, conformance

    async def make():
        clock = ManualClock()
        store = MyStorage(clock=clock)
        await store.open()
        return store, clock

    for case in conformance.cases():
        asyncio.run(conformance.run(case, make))

or, with pytest, `@pytest.mark.parametrize("case", conformance.cases(), ids=str)`.

The clock is any object with `advance(seconds)`, which accepts negative values too. It is the store's own clock and does
not move between two calls of `advance`, because the cases compare instants exactly. A store that reads the time from its
server needs a test-only way to set that time. One thing uses real time: the time limit of a handler's transaction.

A case raises `NotOffered` where the contract lets a store decline: a store without SQL has no transactions. `run` does
not catch it, so that a test framework can report the case as skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import NamedTuple

from perdure.storage.contract import Storage

from .tools import MovableClock, NotOffered

__all__ = ["Case", "Hand", "Maker", "NotOffered", "cases", "run"]

FILES = (
    "enqueueing.enqueue",
    "enqueueing.unique",
    "enqueueing.queue_bounds",
    "claiming.claim",
    "claiming.recover_claim",
    "reporting.apply",
    "reporting.refusals",
    "reporting.other_parties",
    "reporting.continue_chain",
    "claiming.limits",
    "claiming.fairness",
    "flows.edges",
    "flows.kv",
    "claiming.renew",
    "claiming.check_holds",
    "reporting.note",
    "upkeep.promote",
    "upkeep.lapsed",
    "upkeep.expired",
    "upkeep.prune",
    "reading.find",
    "reading.queues",
    "reading.workers",
    "reading.transfer",
    "reading.fields",
    "reading.signals",
    "reporting.transaction",
    "enqueueing.text_fidelity",
    "upkeep.unreadable",
    "flows.lost_edges",
    "reading.open_close",
)

Maker = Callable[[], Awaitable[tuple[Storage, MovableClock]]]


class Case(NamedTuple):
    """One promise: the verb or topic it belongs to, its name, and the function that checks it."""

    verb: str
    name: str
    check: Callable[[Storage, MovableClock], Awaitable[None]]

    def __str__(self) -> str:
        return f"{self.verb}-{self.name}"


def cases() -> list[Case]:
    """Return all cases, file by file, in the order in which they are written."""
    return [case for file in FILES for case in _cases_in(file)]


async def run(case: Case, make: Maker) -> None:
    """Run one case on a fresh store and close the store."""
    store, clock = await make()
    try:
        await case.check(store, clock)
    finally:
        await store.close()


def _cases_in(file: str) -> list[Case]:
    module = import_module(f".{file}", __name__)
    return [
        Case(file.rpartition(".")[2], name.removeprefix("case_"), check)
        for name, check in vars(module).items()
        if name.startswith("case_")
    ]
