"""open, close, durability, now, insertion: a store's own life."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.errors import StoreError
from perdure.storage.contract import Storage

from ..tools import Hand, claim, ids, job, same, true


async def case_opening_twice(store: Storage, clock: Hand) -> None:
    new = job()
    await store.enqueue([new])
    await store.open()
    same(ids(await claim(store)), [new.id], "opening twice is harmless")


async def case_durability(store: Storage, clock: Hand) -> None:
    durability = await store.durability()
    true(durability.grade in ("A", "B", "C", "D"), f"a durability class is A, B, C or D, not {durability.grade}")
    true(bool(durability.detail), "durability says why")


async def case_the_clock(store: Storage, clock: Hand) -> None:
    before = await store.now()
    same(await store.now(), before, "the clock of a conformance run stands still")
    clock.advance(1.5)
    same(await store.now(), before + 3 * SECOND // 2, "the clock moves by what it is advanced")
    clock.advance(-10)
    same(await store.now(), before - 17 * SECOND // 2, "and back")


async def case_a_name(store: Storage, clock: Hand) -> None:
    true(bool(store.name), "a store has a name for messages")
    true(store.chunk >= 1 and store.exchanges_in_flight >= 1, "chunk and in_flight are at least 1")


async def case_insertion(store: Storage, clock: Hand) -> None:
    new = job()
    try:
        insertion = store.caller_statements([new, job(unique_key="k", unique_scope="active")])
    except StoreError:
        return  # no SQL here
    for statement, parameter in (*insertion.inserts, insertion.readback, insertion.owners):
        same(statement.count("?"), 1, "each statement has exactly one parameter, written as ?")
        true("%" not in statement, "a statement contains no percent sign")
        true(parameter[:1] in "[{", "the parameter is a JSON text")
    same(await store.get([new.id]), [None], "an insertion is data: it stores nothing by itself")
