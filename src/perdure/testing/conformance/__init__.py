"""What every store must do, as cases that run against any store.

A case is a plain `async def case_…(store, clock)` that speaks only the contract (`perdure.storage.contract`) and raises
AssertionError with the promise that was broken. There is a file for each verb; nothing here needs a test framework.

To hold a store of your own to it, write one function that gives a *fresh, open, empty* store and its clock, and run
every case with it:

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

The clock: anything with `advance(seconds)`, negative ones too. It is the store's own clock and stands still between two
calls of `advance`, because the cases compare instants exactly; an engine that reads the time on its server needs a
test-only way to say what the time is. The exception is the time limit of a handler's transaction, which is real time.

A case raises `NotOffered` where the contract lets a store decline (a store without SQL has no transaction): `run` lets it
through, so that a test framework can show it as skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import NamedTuple

from perdure.storage.contract import Storage

from .tools import Hand, NotOffered

__all__ = ["Case", "Hand", "Maker", "NotOffered", "cases", "run"]

VERBS = (
    "enqueue",
    "unique",
    "queue_bounds",
    "claim",
    "recover_claim",
    "apply",
    "refusals",
    "other_parties",
    "continue_chain",
    "limits",
    "fairness",
    "edges",
    "kv",
    "renew",
    "check_holds",
    "note",
    "promote",
    "lapsed",
    "expired",
    "prune",
    "find",
    "queues",
    "workers",
    "transfer",
    "signals",
    "transaction",
    "text_fidelity",
    "unreadable",
    "lost_edges",
    "open_close",
)

Maker = Callable[[], Awaitable[tuple[Storage, Hand]]]


class Case(NamedTuple):
    """One promise: the verb it belongs to, its name, and the function that tries it."""

    verb: str
    name: str
    check: Callable[[Storage, Hand], Awaitable[None]]

    def __str__(self) -> str:
        return f"{self.verb}-{self.name}"


def cases() -> list[Case]:
    """All cases, verb by verb, in the order in which they are written."""
    return [case for verb in VERBS for case in _cases_of(verb)]


async def run(case: Case, make: Maker) -> None:
    """Try one case on a fresh store and close it."""
    store, clock = await make()
    try:
        await case.check(store, clock)
    finally:
        await store.close()


def _cases_of(verb: str) -> list[Case]:
    module = import_module(f".{verb}", __name__)
    return [
        Case(verb, name.removeprefix("case_"), check)
        for name, check in vars(module).items()
        if name.startswith("case_")
    ]
