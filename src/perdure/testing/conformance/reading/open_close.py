"""open, close, durability, now, and the statements for a caller's transaction."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.errors import StoreError
from perdure.storage.contract import Storage

from ..tools import MovableClock, assert_equal, assert_true, claim, ids, job


async def case_opening_twice(store: Storage, clock: MovableClock) -> None:
    new = job()
    await store.enqueue([new])
    await store.open()
    assert_equal(ids(await claim(store)), [new.id], "opening twice is harmless")


async def case_durability(store: Storage, clock: MovableClock) -> None:
    durability = await store.durability()
    assert_true(durability.grade in ("A", "B", "C", "D"), f"a durability class is A, B, C or D, not {durability.grade}")
    assert_true(bool(durability.detail), "durability says why")


async def case_the_clock(store: Storage, clock: MovableClock) -> None:
    before = await store.now()
    assert_equal(await store.now(), before, "the clock of a conformance run does not move by itself")
    clock.advance(1.5)
    assert_equal(await store.now(), before + 3 * SECOND // 2, "the clock moves by what it is advanced")
    clock.advance(-10)
    assert_equal(await store.now(), before - 17 * SECOND // 2, "and back")


async def case_a_name(store: Storage, clock: MovableClock) -> None:
    assert_true(bool(store.name), "a store has a name for messages")
    assert_true(store.chunk >= 1 and store.exchanges_in_flight >= 1, "chunk and in_flight are at least 1")


async def case_insertion(store: Storage, clock: MovableClock) -> None:
    new = job()
    try:
        insertion = store.caller_statements([new, job(unique_key="k", unique_scope="active")])
    except StoreError:
        return  # no SQL here
    for statement, parameter in (*insertion.inserts, insertion.readback, insertion.owners):
        assert_equal(statement.count("?"), 1, "each statement has exactly one parameter, written as ?")
        assert_true("%" not in statement, "a statement contains no percent sign")
        assert_true(parameter[:1] in "[{", "the parameter is a JSON text")
    assert_equal(await store.get([new.id]), [None], "an insertion is data: it stores nothing by itself")
