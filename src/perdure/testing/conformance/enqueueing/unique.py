"""Unique keys: their scopes, how long they are held, and which job owns them."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import (
    Cancelled,
    Deleted,
    Died,
    Failed,
    LeaseLapsed,
    Retried,
    Skipped,
    Snoozed,
    Stopped,
    Succeeded,
    decide,
)
from perdure.storage.contract import EnqueueResult, Filter, Refusal, Storage

from ..tools import (
    FORGET,
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_refused,
    assert_true,
    assert_unchanged,
    claim,
    fault,
    ids,
    job,
    read_job,
    report,
    unique,
)


async def case_active_holds_until_the_end(store: Storage, clock: MovableClock) -> None:
    owner = unique("active")
    await store.enqueue([owner])
    await _is_duplicate(store, "active", owner.id, "while it is ready")
    record = (await claim(store))[0]
    await _is_duplicate(store, "active", owner.id, "while it runs")
    await report(store, record.id, Failed(fault(), delay=SECOND))
    await _is_duplicate(store, "active", owner.id, "while it waits for its retry")
    clock.advance(1)
    await claim(store)
    await report(store, owner.id, Succeeded())
    await _is_free(store, "active", "after its end")


async def case_active_is_freed_by_every_end(store: Storage, clock: MovableClock) -> None:
    for reported in (Succeeded(), Skipped(), Died("no")):
        await store.enqueue([unique("active")])
        record = (await claim(store))[0]
        assert_true(record.holds_key, "a running job of scope active holds its key")
        after = await report(store, record.id, reported)
        assert_equal(after.holds_key, False, f"{type(reported).__name__} frees the key")


async def case_cancelled_while_waiting_frees_at_once(store: Storage, clock: MovableClock) -> None:
    for scope in ("waiting", "active"):
        owner = unique(scope, delay=SECOND)
        await store.enqueue([owner])
        await report(store, owner.id, Cancelled())
        await _is_free(store, scope, "after a waiting owner was cancelled", delay=SECOND)
        await _cancel_all(store)


async def case_duplicates_store_nothing(store: Storage, clock: MovableClock) -> None:
    owner, other = unique("active"), unique("active")
    await store.enqueue([owner])
    assert_equal(
        await store.enqueue([other]), [EnqueueResult(owner.id, duplicate=True)], "a duplicate gets the id of the owner"
    )
    assert_equal(await store.get([other.id]), [None], "nothing is stored for a duplicate")


async def case_two_of_one_key_in_a_list(store: Storage, clock: MovableClock) -> None:
    for scope in ("waiting", "active", "any", "window"):
        first, second, plain = (unique(scope, scope, unique_window=SECOND) for _ in range(3))
        plain = job()
        wanted = [EnqueueResult(first.id), EnqueueResult(first.id, duplicate=True), EnqueueResult(plain.id)]
        assert_equal(await store.enqueue([first, second, plain]), wanted, f"two of one {scope} key in one list")
        assert_equal(await store.get([second.id]), [None], "the second one is not stored")


async def case_known_id_before_key(store: Storage, clock: MovableClock) -> None:
    owner = unique("active")
    await store.enqueue([owner])
    assert_equal(
        await store.enqueue([owner]), [EnqueueResult(owner.id)], "the owner, enqueued again, is no duplicate of itself"
    )


async def case_different_keys_do_not_meet(store: Storage, clock: MovableClock) -> None:
    jobs = [unique("active", "a"), unique("active", "b"), unique("active", "A"), unique("active", "a "), job(key="a")]
    assert_equal([stored.duplicate for stored in await store.enqueue(jobs)], [False] * 5, "keys are compared exactly")


async def case_waiting_is_freed_by_the_first_claim(store: Storage, clock: MovableClock) -> None:
    first = unique("waiting")
    await store.enqueue([first])
    await _is_duplicate(store, "waiting", first.id, "while it waits")
    record = (await claim(store))[0]
    assert_equal(record.holds_key, False, "the first claim frees a waiting key")
    second = unique("waiting")
    assert_equal(await store.enqueue([second]), [EnqueueResult(second.id)], "a waiting key is free while its job runs")
    back = await report(store, first.id, Snoozed(delay=0))
    assert_equal(
        (back.state, back.holds_key), (State.READY, False), "a job that comes back does not take its key again"
    )
    await _is_duplicate(store, "waiting", second.id, "the successor owns it")


async def case_waiting_is_not_held_again(store: Storage, clock: MovableClock) -> None:
    first = unique("waiting", max_attempts=1)
    await store.enqueue([first])
    await claim(store)
    await report(store, first.id, Failed(fault()))
    back = await report(store, first.id, Retried())
    assert_equal(
        (back.state, back.holds_key), (State.READY, False), "a retried dead letter of scope waiting takes no key"
    )
    await _is_free(store, "waiting", "beside a job that came back")


async def case_waiting_and_active_share_their_names(store: Storage, clock: MovableClock) -> None:
    first, second = unique("waiting", "x"), unique("active", "y")
    await store.enqueue([first, second])
    crossed = await store.enqueue([unique("active", "x"), unique("waiting", "y")])
    wanted = [EnqueueResult(first.id, duplicate=True), EnqueueResult(second.id, duplicate=True)]
    assert_equal(crossed, wanted, "waiting and active are one namespace")


async def case_kept_keys_and_live_keys_never_meet(store: Storage, clock: MovableClock) -> None:
    jobs = [unique("active"), unique("any")]
    assert_equal([stored.duplicate for stored in await store.enqueue(jobs)], [False, False], "any and active are apart")
    window = unique("window", unique_window=SECOND)
    assert_equal(
        await store.enqueue([window]), [EnqueueResult(jobs[1].id, duplicate=True)], "any and window are one namespace"
    )


async def case_any_outlives_its_job(store: Storage, clock: MovableClock) -> None:
    owner = unique("any", retention=FORGET)
    await store.enqueue([owner])
    await _is_duplicate(store, "any", owner.id, "while it waits")
    await claim(store)
    await report(store, owner.id, Succeeded())
    await _is_duplicate(store, "any", owner.id, "after its end")
    clock.advance(3600)
    assert_equal(await store.prune(10), 1, "the hidden job is pruned")
    await _is_duplicate(store, "any", owner.id, "after its row is gone")


async def case_any_outlives_cancel_and_deletion(store: Storage, clock: MovableClock) -> None:
    for reported in (Cancelled(), Deleted()):
        owner = unique("any", type(reported).__name__)
        await store.enqueue([owner])
        await report(store, owner.id, reported)
        other = unique("any", type(reported).__name__)
        assert_equal(
            await store.enqueue([other]), [EnqueueResult(owner.id, duplicate=True)], f"any outlives {reported}"
        )


async def case_own_kept_key(store: Storage, clock: MovableClock) -> None:
    owner = unique("any", retention=FORGET)
    await store.enqueue([owner])
    await claim(store)
    await report(store, owner.id, Succeeded())
    clock.advance(3600)
    await store.prune(10)
    assert_equal(
        await store.enqueue([owner]), [EnqueueResult(owner.id)], "a job that meets its own kept key is no duplicate"
    )
    assert_equal(await store.get([owner.id]), [None], "a job that meets its own kept key is not stored again")


async def case_window_holds_until_it_has_passed(store: Storage, clock: MovableClock) -> None:
    owner = unique("window", unique_window=10 * SECOND)
    await store.enqueue([owner])
    await claim(store)
    await report(store, owner.id, Succeeded())
    clock.advance(9)
    await _is_duplicate(store, "window", owner.id, "inside the window, after its end")
    clock.advance(1)
    successor = unique("window", unique_window=10 * SECOND)
    assert_equal(
        await store.enqueue([successor]), [EnqueueResult(successor.id)], "the window is over when its time has passed"
    )
    clock.advance(9)
    await _is_duplicate(store, "window", successor.id, "in the successor's window")


async def case_window_outlives_its_row(store: Storage, clock: MovableClock) -> None:
    owner = unique("window", unique_window=7200 * SECOND, retention=FORGET)
    await store.enqueue([owner])
    await claim(store)
    await report(store, owner.id, Succeeded())
    clock.advance(3600)
    await store.prune(10)
    assert_equal(await store.get([owner.id]), [None], "the row is pruned")
    await _is_duplicate(store, "window", owner.id, "after its row is gone")


async def case_window_does_not_free_by_prune(store: Storage, clock: MovableClock) -> None:
    owner = unique("window", unique_window=10 * SECOND)
    await store.enqueue([owner])
    clock.advance(9)
    await store.prune(10)
    await _is_duplicate(store, "window", owner.id, "prune removes only windows that are over")
    clock.advance(1)
    await store.prune(10)
    await _is_free(store, "window", "after its window", unique_window=SECOND)


async def case_cancelled_while_running_keeps_the_key_until_stopped(store: Storage, clock: MovableClock) -> None:
    for reported in (Cancelled("why"), Deleted()):
        owner = unique("active")
        await store.enqueue([owner])
        record = (await claim(store))[0]
        ended = await report(store, record.id, reported)
        assert_true(ended.holds_key, f"{type(reported).__name__} of a running job leaves its key with the hold")
        await _is_duplicate(store, "active", owner.id, "while the ended job's code may still run")
        assert_accepted(await apply_report(store, record, Stopped()), "the holder's Stopped")
        assert_equal((await read_job(store, owner.id)).holds_key, False, "Stopped frees the key")
        await _is_free(store, "active", "after Stopped")
        await _cancel_all(store)


async def case_cancelled_while_running_keeps_the_key_until_the_lease_ends(store: Storage, clock: MovableClock) -> None:
    for reported in (Cancelled(), Deleted()):
        owner = unique("active", lease=30 * SECOND)
        await store.enqueue([owner])
        await claim(store)
        await report(store, owner.id, reported)
        clock.advance(29)
        assert_equal(await store.lapsed(10, 3600 * SECOND), [], "the lease is not over")
        await _is_duplicate(store, "active", owner.id, "while the lease lasts")
        clock.advance(1)
        lapsed = await store.lapsed(10, 3600 * SECOND)
        assert_equal(ids(lapsed), [owner.id], "lapsed finds ended jobs with a hold, hidden ones too")
        assert_accepted(await apply_report(store, lapsed[0], LeaseLapsed()), "upkeep's LeaseEnded")
        await _is_free(store, "active", "after the lease")
        await _cancel_all(store)


async def case_retry_of_a_dead_letter_takes_its_key_again(store: Storage, clock: MovableClock) -> None:
    dead = unique("active", max_attempts=1)
    await store.enqueue([dead])
    await claim(store)
    await report(store, dead.id, Failed(fault()))
    back = await report(store, dead.id, Retried())
    assert_true(back.holds_key, "a retried dead letter of scope active holds its key again")
    await _is_duplicate(store, "active", dead.id, "after the retry")


async def case_retry_whose_key_is_held(store: Storage, clock: MovableClock) -> None:
    dead, other = unique("active", max_attempts=1), job(max_attempts=1)
    await store.enqueue([dead, other])
    await claim(store, 2)
    for id in (dead.id, other.id):
        await report(store, id, Failed(fault()))
    successor = unique("active")
    await store.enqueue([successor])
    before = await read_job(store, dead.id)
    decided = [decide(await read_job(store, id), Retried()) for id in (dead.id, other.id)]
    verdicts = await store.apply(decided)
    assert_refused(verdicts[0], Refusal.KEY_TAKEN, "the retry of a dead letter whose key another job owns")
    assert_accepted(verdicts[1], "the retry of its neighbour")
    assert_unchanged(before, await read_job(store, dead.id), "a refused retry")
    await report(store, successor.id, Cancelled())
    assert_accepted(await apply_report(store, before, Retried()), "the same retry once the key is free")


async def case_keys_move_in_list_order(store: Storage, clock: MovableClock) -> None:
    dead = unique("active", max_attempts=1)
    await store.enqueue([dead])
    await claim(store)
    letter = await report(store, dead.id, Failed(fault()))
    owner = unique("active")
    await store.enqueue([owner])
    holder = (await claim(store))[0]
    verdicts = await store.apply([decide(letter, Retried()), decide(holder, Succeeded())])
    assert_refused(verdicts[0], Refusal.KEY_TAKEN, "a key that a later change of the list would free")
    assert_accepted(verdicts[1], "the change that frees the key")

    await report(store, dead.id, Retried())
    again = (await claim(store))[0]
    letter = await report(store, again.id, Failed(fault()))
    owner = unique("active")
    await store.enqueue([owner])
    holder = (await claim(store))[0]
    for verdict in await store.apply([decide(holder, Succeeded()), decide(letter, Retried())]):
        assert_accepted(verdict, "freeing a key and then taking it in one list")


async def case_many_at_once_have_one_owner(store: Storage, clock: MovableClock) -> None:
    for scope in ("waiting", "active", "any", "window"):
        jobs = [unique(scope, scope, unique_window=SECOND) for _ in range(20)]
        answers = await asyncio.gather(*(store.enqueue([new]) for new in jobs))
        owners = {stored.id for (stored,) in answers}
        assert_equal(len(owners), 1, f"20 enqueues of one {scope} key at once have one owner")
        assert_equal(sum(not stored.duplicate for (stored,) in answers), 1, f"19 of 20 are duplicates ({scope})")


async def _is_duplicate(store: Storage, scope: str, owner: str, when: str) -> None:
    other = unique(scope, unique_window=SECOND)
    promise = f"the key of scope {scope} is held {when}"
    assert_equal(await store.enqueue([other]), [EnqueueResult(owner, duplicate=True)], promise)


async def _is_free(store: Storage, scope: str, when: str, **fields: Any) -> None:
    other = unique(scope, **fields)
    assert_equal(await store.enqueue([other]), [EnqueueResult(other.id)], f"the key of scope {scope} is free {when}")


async def _cancel_all(store: Storage) -> None:
    """Start the next round without any key."""
    while records := await claim(store, 100):
        for record in records:
            await report(store, record.id, Skipped())
    scheduled = (await store.find(Filter(states=(State.SCHEDULED,)), 1000, None))[0]
    for record in scheduled:
        await report(store, record.id, Cancelled())
