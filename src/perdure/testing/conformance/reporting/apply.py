"""apply: the store accepts a report of the holder once, and writes what the `Change` contains."""

from __future__ import annotations

import msgspec

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Died, Failed, HandedBack, HoldGuard, Skipped, Snoozed, Succeeded, decide
from perdure.core.record import faults_of
from perdure.core.retention import HIDDEN_FOR, Retention
from perdure.storage.contract import Claim, Started, Storage, Want

from ..tools import (
    FORGET,
    MovableClock,
    apply_report,
    assert_accepted,
    assert_changed_only,
    assert_equal,
    assert_repeated,
    assert_unchanged,
    claim,
    enqueue_and_claim,
    fault,
    ids,
    job,
    read_job,
    report,
    unique,
)

FREE = {"stamp": None, "leased_by": None, "leased_until": None}


async def case_success(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=Retention.keep(last=9, age=60).text())
    clock.advance(2)
    now = await store.now()
    after = await report(store, record.id, Succeeded('{"a": 1}', started_at=now - 5))
    wanted = {
        "state": State.SUCCEEDED,
        "version": record.version + 1,
        "accepted_stamp": record.stamp,
        "result": '{"a": 1}',
        "started_at": now - 5,
        "finished_at": now,
        "prune_at": now + 60 * SECOND,
        "keep_last": 9,
        **FREE,
    }
    assert_changed_only(record, after, "a success", **wanted)


async def case_success_for_ever(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=Retention.keep().text())
    after = await report(store, record.id, Succeeded())
    assert_equal((after.prune_at, after.keep_last, after.hidden), (None, None, False), "kept for ever")


async def case_delete_on_success_hides(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=FORGET)
    after = await report(store, record.id, Succeeded("1"))
    assert_equal((after.hidden, after.result), (True, "1"), "deleted on success is hidden at once, with its result")
    assert_equal(after.prune_at, await store.now() + HIDDEN_FOR, "a hidden row stays for ten minutes")


async def case_failure_with_a_retry(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, **_key_fields("active"))
    clock.advance(2)
    now = await store.now()
    after = await report(store, record.id, Failed(fault("one"), delay=7 * SECOND, started_at=now - 1))
    wanted = {
        "state": State.SCHEDULED,
        "version": record.version + 1,
        "accepted_stamp": record.stamp,
        "failures": 1,
        "run_at": now + 7 * SECOND,
        "rank": now + 7 * SECOND,
        "errors": after.errors,
        "started_at": now - 1,
        **FREE,
    }
    assert_changed_only(record, after, "a failure", **wanted)
    assert_equal([found.message for found in faults_of(after.errors)], ["one"], "the error is kept")


async def case_no_delay_is_ready_at_once(store: Storage, clock: MovableClock) -> None:
    now = await store.now()
    for reported in (Failed(fault(), delay=0), Snoozed(delay=0), Snoozed(at=now), Snoozed(at=now - SECOND)):
        record = await enqueue_and_claim(store)
        after = await report(store, record.id, reported)
        assert_equal(after.state, State.READY, f"a due job is ready, not scheduled: {reported}")
        assert_equal(ids(await claim(store, 9)), [record.id], "and is claimed")
        await report(store, record.id, Succeeded())


async def case_snooze_until_an_instant(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    at = await store.now() + 90 * SECOND
    after = await report(store, record.id, Snoozed(at=at, reason="later"))
    found = (after.state, after.run_at, after.rank, after.failures, after.reason)
    assert_equal(found, (State.SCHEDULED, at, at, 0, "later"), "a snooze until an instant, free of charge")


async def case_handed_back_keeps_its_place(store: Storage, clock: MovableClock) -> None:
    first, second = job(), job()
    await store.enqueue([first])
    clock.advance(1)
    await store.enqueue([second])
    (record,) = await claim(store, 1)
    clock.advance(1)
    after = await report(store, record.id, HandedBack("shutdown"))
    wanted = {"state": State.READY, "version": record.version + 1, "accepted_stamp": record.stamp, "reason": "shutdown"}
    assert_changed_only(record, after, "a job handed back", **wanted, **FREE)
    assert_equal(ids(await claim(store, 2)), [first.id, second.id], "it keeps its place in the line")


async def case_skipped_and_died(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    after = await report(store, record.id, Skipped("nothing to do", result="[]"))
    assert_equal((after.state, after.reason, after.result), (State.SKIPPED, "nothing to do", "[]"), "a skipped job")
    record = await enqueue_and_claim(store, dead_retention=Retention.keep(last=3).text())
    after = await report(store, record.id, Died("bad address", fault()))
    found = (after.state, after.reason, after.failures, after.keep_last, after.prune_at)
    assert_equal(found, (State.DEAD, "bad address", 1, 3, None), "a dead letter is kept as dead_retention says")
    assert_equal(after.finished_at, await store.now(), "dead is final: finished_at is set")


async def case_result_and_reason_are_always_written(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Snoozed(delay=0, reason="not yet"))
    await claim(store)
    after = await report(store, record.id, Succeeded())
    assert_equal((after.reason, after.result), (None, None), "result and reason are written, also when they are None")


async def case_errors_and_started_at_stay_when_not_reported(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Failed(fault("kept"), delay=0))
    (again,) = await claim(store)
    now = await store.now()
    await store.exchange((), None, [Started(again.hold, now)])
    after = await report(store, record.id, Succeeded("1"))
    assert_equal([found.message for found in faults_of(after.errors)], ["kept"], "errors stay when a change says none")
    assert_equal(after.started_at, now, "started_at stays when a change says none")


async def case_a_repeated_report(store: Storage, clock: MovableClock) -> None:
    for reported in (Succeeded("1"), Failed(fault()), Snoozed(delay=SECOND), Died("x"), HandedBack()):
        record = await enqueue_and_claim(store)
        await apply_report(store, record, reported)
        before = await read_job(store, record.id)
        clock.advance(1)
        assert_repeated(await apply_report(store, record, reported), f"a repeated {type(reported).__name__}")
        assert_unchanged(before, await read_job(store, record.id), "a repeated report")
        await _drain(store)


async def case_a_repeated_report_about_a_hidden_row(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=FORGET)
    await apply_report(store, record, Succeeded())
    clock.advance(60)
    assert_repeated(await apply_report(store, record, Succeeded()), "the repeated success of a job deleted on success")


async def case_a_repeated_report_after_the_next_claim(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await apply_report(store, record, Failed(fault(), delay=0))
    (again,) = await claim(store)
    assert_repeated(
        await apply_report(store, record, Failed(fault(), delay=0)), "a failure, repeated after the next claim"
    )
    assert_unchanged(again, await read_job(store, record.id), "a report repeated after the next claim")
    assert_accepted(await apply_report(store, again, Succeeded()), "the next holder's report")


async def case_a_stale_report_beside_good_ones(store: Storage, clock: MovableClock) -> None:
    records = [await enqueue_and_claim(store) for _ in range(5)]
    decided = [decide(record, Succeeded(str(n))) for n, record in enumerate(records)]
    decided[1] = msgspec.structs.replace(decided[1], guard=HoldGuard(1, new_stamp()))
    decided[3] = msgspec.structs.replace(decided[3], id=job().id)
    verdicts = await store.apply(decided)
    assert_equal(
        [verdict.accepted for verdict in verdicts], [True, False, True, False, True], "each change is judged alone"
    )
    rows = await store.get(ids(records))
    found = [row.result for row in rows if row is not None]
    assert_equal(found, ["0", None, "2", None, "4"], "refused changes do not affect others")


async def case_two_changes_of_one_job(store: Storage, clock: MovableClock) -> None:
    record, other = await enqueue_and_claim(store), await enqueue_and_claim(store)
    fresh = job()
    await store.enqueue([fresh])
    decided = [decide(other, Succeeded()), decide(record, Succeeded()), decide(record, Died("x"))]
    for exchange in (store.exchange(decided), store.exchange(decided, Claim("w2", new_stamp(), (Want(9),)))):
        try:
            await exchange
        except ValueError:
            pass
        else:
            raise AssertionError("two changes of one job in one call must raise ValueError")
    assert_unchanged(record, await read_job(store, record.id), "a call with two changes of one job")
    assert_unchanged(other, await read_job(store, other.id), "a call with two changes of another job")
    assert_equal((await read_job(store, fresh.id)).state, State.READY, "nothing is claimed by it either")


async def case_a_whole_chunk(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job() for _ in range(store.chunk)])
    records = await claim(store, store.chunk)
    verdicts = await store.apply([decide(record, Succeeded(str(n))) for n, record in enumerate(records)])
    true_count = sum(verdict.accepted for verdict in verdicts)
    assert_equal(true_count, store.chunk, "a call takes `chunk` changes")
    rows = await store.get(ids(records))
    found = [row.result for row in rows if row is not None]
    assert_equal(found, [str(n) for n in range(store.chunk)], "each job gets its own result")


async def case_nothing_to_apply(store: Storage, clock: MovableClock) -> None:
    answer = await store.exchange(())
    assert_equal((list(answer.verdicts), list(answer.claimed)), ([], []), "an empty exchange")


async def case_started_is_noted(store: Storage, clock: MovableClock) -> None:
    record, lost = await enqueue_and_claim(store), await enqueue_and_claim(store)
    now = await store.now()
    stale = msgspec.structs.replace(lost.hold, stamp=new_stamp())
    await store.exchange((), None, [Started(record.hold, now - 3), Started(stale, now)])
    assert_changed_only(record, await read_job(store, record.id), "noting a start", started_at=now - 3)
    assert_unchanged(lost, await read_job(store, lost.id), "a start noted by a stale holder")


async def case_started_after_the_end_is_ignored(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    now = await store.now()
    decided = [decide(record, Succeeded(started_at=now - 9))]
    await store.exchange(decided, None, [Started(record.hold, now)])
    assert_equal(
        (await read_job(store, record.id)).started_at, now - 9, "changes come first; a start is noted for running jobs"
    )


async def _drain(store: Storage) -> None:
    for record in await claim(store, 99):
        await report(store, record.id, Skipped())


def _key_fields(scope: str) -> dict[str, str]:
    new = unique(scope)
    return {"unique_key": new.unique_key or "", "unique_scope": scope}
