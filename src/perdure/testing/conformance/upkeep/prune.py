"""prune: ended jobs are removed by age or number, and never while they are held."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Deleted, Died, LeaseLapsed, Report, Retried, Skipped, Succeeded
from perdure.core.record import Record
from perdure.core.retention import HIDDEN_FOR, Retention
from perdure.storage.contract import EnqueueResult, Filter, Refusal, Storage

from ..tools import (
    FORGET,
    LONG_ENOUGH,
    MovableClock,
    apply_report,
    assert_accepted,
    assert_changed_only,
    assert_equal,
    assert_refused,
    assert_repeated,
    claim,
    enqueue_and_claim,
    ids,
    job,
    read_job,
    report,
    unique,
)

BRIEF = (Retention.keep(age=0), Retention.keep(last=0), Retention.keep(last=0, age=5))
LAST_TWO = Retention.keep(last=2).text()
FOR_EVER = Retention.keep().text()


async def case_past_their_age(store: Storage, clock: MovableClock) -> None:
    aged = Retention.keep(age=60).text()
    gone = [await _end_job(store, reported, retention=aged) for reported in (Succeeded(), Skipped())]
    kept = await _end_job(store, Succeeded(), retention=FOR_EVER)
    waiting = job(delay=3600 * SECOND)
    await store.enqueue([waiting])
    clock.advance(59.999999)
    assert_equal(await store.prune(9), 0, "a microsecond too early")
    clock.advance(0.000001)
    assert_equal(await store.prune(9), 2, "from prune_at on; prune tells how many jobs")
    assert_equal(await _remaining_ids(store), {kept.id, waiting.id}, "what has no age, and what waits, stays")
    clock.advance(540)
    assert_equal(await store.prune(9), 2, "ten minutes after their end they are removed")
    assert_equal(await store.get(ids(gone)), [None, None], "they are gone")


async def case_nothing_is_removed_within_ten_minutes(store: Storage, clock: MovableClock) -> None:
    """A client repeats an enqueue for up to a minute after a broken connection. It must find the job that it stored."""
    new = [job(retention=rule.text(), dead_retention=rule.text()) for rule in BRIEF for _ in range(2)]
    await store.enqueue(new)
    for number, record in enumerate(await claim(store, 9)):
        assert_accepted(await apply_report(store, record, Died("x") if number % 2 else Succeeded("1")), "the end")
    assert_equal(await store.prune(9), 6, "jobs past their retention are pruned")
    assert_equal((await _remaining_ids(store), await store.count(Filter())), (set(), 0), "no listing shows it")
    assert_equal(
        await store.enqueue(new),
        [EnqueueResult(each.id) for each in new],
        "an enqueue that is repeated is no duplicate",
    )
    assert_equal(await claim(store, 9), [], "and runs nothing again")
    clock.advance(599.999999)
    assert_equal(await store.prune(9), 0, "a microsecond too early")
    clock.advance(0.000001)
    assert_equal(await store.prune(9), 6, "ten minutes after its end it is removed")
    assert_equal(await store.get(ids(new)), [None] * 6, "then it is gone")


async def case_what_is_hidden_is_as_it_was(store: Storage, clock: MovableClock) -> None:
    for retention in BRIEF:
        record = await enqueue_and_claim(store, retention=retention.text())
        ended = await report(store, record.id, Succeeded('"r"'))
        clock.advance(7)
        assert_equal(await store.prune(9), 1, "pruned")
        until = (ended.finished_at or 0) + HIDDEN_FOR
        hidden = await read_job(store, record.id)
        fields = {"hidden": True, "prune_at": until, "keep_last": None, "version": ended.version + 1}
        assert_changed_only(ended, hidden, "a prune within ten minutes", **fields)
        assert_repeated(await apply_report(store, record, Succeeded('"r"')), "its holder's report, repeated")
        assert_refused(await apply_report(store, ended, Deleted()), Refusal.STALE, "a report about an old version")
        assert_equal(await store.prune(9), 0, "it is pruned once")


async def case_a_dead_letter_that_is_hidden(store: Storage, clock: MovableClock) -> None:
    ended = await _end_job(store, Died("x"), dead_retention=Retention.keep(last=0).text())
    assert_equal(await store.prune(9), 1, "pruned")
    assert_refused(await apply_report(store, ended, Retried()), Refusal.STALE, "the retry of a pruned dead letter")
    assert_equal(await store.count(Filter(states=(State.DEAD,))), 0, "it is no dead letter any more")
    hidden = await read_job(store, ended.id)
    assert_equal((hidden.state, hidden.reason), (State.DEAD, "x"), "who waits for it hears how it ended")


async def case_removed_at_once_after_ten_minutes(store: Storage, clock: MovableClock) -> None:
    records = [await _end_job(store, Succeeded(), retention=retention.text()) for retention in BRIEF]
    clock.advance(600)
    assert_equal(await store.prune(9), 3, "no client repeats a call after so long")
    assert_equal(await store.get(ids(records)), [None] * 3, "they are gone")


async def case_hidden_ones_take_no_places(store: Storage, clock: MovableClock) -> None:
    records = []
    for _ in range(4):
        records.append(await _end_job(store, Succeeded(), retention=LAST_TWO))
        clock.advance(1)
    assert_equal(await store.prune(9), 2, "all beyond the newest two")
    assert_equal(await store.prune(9), 0, "what is hidden is not counted again")
    records.append(await _end_job(store, Succeeded(), retention=LAST_TWO))
    assert_equal(await store.prune(9), 1, "one more ended, one more is pruned")
    assert_equal(await _remaining_ids(store), {records[3].id, records[4].id}, "the newest stay")


async def case_hidden_ones_hold_no_key(store: Storage, clock: MovableClock) -> None:
    owner = unique("active", retention=Retention.keep(last=0).text())
    await store.enqueue([owner])
    await claim(store)
    await report(store, owner.id, Succeeded())
    await store.prune(9)
    other = unique("active")
    assert_equal(await store.enqueue([other]), [EnqueueResult(other.id)], "the key of a pruned job is free")


async def case_days_are_counted_exactly(store: Storage, clock: MovableClock) -> None:
    for days in (1, 7):
        await _end_job(store, Succeeded(), retention=Retention.keep(age=days * 86_400).text())
    assert_equal(await store.prune(9), 0, "kept for days")
    clock.advance(86_399)
    assert_equal(await store.prune(9), 0, "a second too early")
    clock.advance(1)
    assert_equal(await store.prune(9), 1, "kept for a day")
    clock.advance(6 * 86_400 - 1)
    assert_equal(await store.prune(9), 0, "a second too early")
    clock.advance(1)
    assert_equal(await store.prune(9), 1, "kept for a week")


async def case_age_is_counted_from_the_end(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, retention=Retention.keep(age=60).text())
    clock.advance(50)
    await store.renew([record.hold])
    await report(store, record.id, Succeeded())
    clock.advance(50)
    assert_equal(await store.prune(9), 0, "the age of an ended job is counted from its end")


async def case_limit(store: Storage, clock: MovableClock) -> None:
    for _ in range(5):
        await _end_job(store, Succeeded(), retention=Retention.keep(age=0).text())
    counts = [await store.prune(2) for _ in range(4)]
    assert_equal(counts, [2, 2, 1, 0], "at most `limit` at a time, until nothing is left")


async def case_hidden_ones_after_ten_minutes(store: Storage, clock: MovableClock) -> None:
    await _end_job(store, Succeeded(), retention=FORGET)
    deleted = job()
    await store.enqueue([deleted])
    await report(store, deleted.id, Deleted())
    clock.advance(599)
    assert_equal(await store.prune(9), 0, "hidden rows stay for ten minutes, so that repeated reports find them")
    clock.advance(1)
    assert_equal(await store.prune(9), 2, "and go then")


async def case_the_newest_of_a_task(store: Storage, clock: MovableClock) -> None:
    records = []
    for _ in range(5):
        records.append(await _end_job(store, Succeeded(), retention=LAST_TWO))
        clock.advance(1)
    other = await _end_job(store, Succeeded(), task="other", retention=LAST_TWO)
    assert_equal(await store.prune(9), 3, "all beyond the newest two of the task")
    assert_equal(
        await _remaining_ids(store),
        {records[3].id, records[4].id, other.id},
        "the newest stay; each task has its own count",
    )


async def case_newest_by_end_then_id(store: Storage, clock: MovableClock) -> None:
    records = [await enqueue_and_claim(store, retention=LAST_TWO) for _ in range(4)]
    await report(store, records[0].id, Succeeded())
    clock.advance(1)
    for record in (records[3], records[1], records[2]):
        await report(store, record.id, Succeeded())
    await store.prune(9)
    assert_equal(await _remaining_ids(store), {records[2].id, records[3].id}, "newest by finished_at, then by id")


async def case_dead_ones_are_counted_apart(store: Storage, clock: MovableClock) -> None:
    kept = {"retention": LAST_TWO, "dead_retention": LAST_TWO}
    records = []
    for reported in (Died("x"), Succeeded(), Skipped(), Died("x"), Succeeded(), Died("x")):
        records.append(await _end_job(store, reported, **kept))
        clock.advance(1)
    assert_equal(await store.prune(9), 2, "one dead letter and one other beyond the newest two")
    wanted = {records[position].id for position in (2, 3, 4, 5)}
    assert_equal(await _remaining_ids(store), wanted, "dead letters are counted apart from the others")


async def case_keep_none(store: Storage, clock: MovableClock) -> None:
    await _end_job(store, Succeeded(), retention=Retention.keep(last=0).text())
    assert_equal(await store.prune(9), 1, "last=0 keeps none")


async def case_each_row_by_its_own_rule(store: Storage, clock: MovableClock) -> None:
    records = []
    for retention in (FOR_EVER, LAST_TWO, FOR_EVER, FOR_EVER, LAST_TWO):
        records.append(await _end_job(store, Succeeded(), retention=retention))
        clock.advance(1)
    assert_equal(
        await store.prune(9), 1, "a row with last=2 is pruned when there are two newer ones, whatever their rule"
    )
    wanted = {records[position].id for position in (0, 2, 3, 4)}
    assert_equal(await _remaining_ids(store), wanted, "rows kept for ever stay")


async def case_hidden_ones_are_not_counted(store: Storage, clock: MovableClock) -> None:
    first = await _end_job(store, Succeeded(), retention=Retention.keep(last=1).text())
    clock.advance(1)
    second = await _end_job(store, Succeeded(), retention=Retention.keep(last=1).text())
    await report(store, second.id, Deleted())
    assert_equal(await store.prune(9), 0, "a deleted job is not among the newest")
    assert_equal(await _remaining_ids(store), {first.id}, "the newest visible one stays")


async def case_both_age_and_number(store: Storage, clock: MovableClock) -> None:
    both = Retention.keep(last=2, age=60).text()
    for _ in range(3):
        await _end_job(store, Succeeded(), retention=both)
        clock.advance(1)
    assert_equal(await store.prune(9), 1, "beyond the newest two")
    clock.advance(60)
    assert_equal(await store.prune(9), 2, "past their age")


async def case_never_one_that_carries_a_hold(store: Storage, clock: MovableClock) -> None:
    none = Retention.keep(last=0, age=0).text()
    cancelled, deleted = await enqueue_and_claim(store, retention=none), await enqueue_and_claim(store)
    await report(store, cancelled.id, Cancelled())
    await report(store, deleted.id, Deleted())
    clock.advance(3600)
    assert_equal(await store.prune(9), 0, "an ended job that still carries a hold is not pruned")
    for lapsed in await store.lapsed(9, LONG_ENOUGH):
        await apply_report(store, lapsed, LeaseLapsed())
    assert_equal(await store.prune(9), 2, "it is removed when the hold is released")


async def case_a_hold_does_not_shield_others(store: Storage, clock: MovableClock) -> None:
    now_gone = Retention.keep(age=0).text()
    held = await enqueue_and_claim(store, retention=now_gone)
    await report(store, held.id, Cancelled())
    clock.advance(1)
    await _end_job(store, Succeeded(), retention=now_gone)
    assert_equal(await store.prune(1), 1, "held jobs do not use up the limit")


async def case_a_retried_dead_letter_stays(store: Storage, clock: MovableClock) -> None:
    record = await _end_job(store, Died("x"), dead_retention=Retention.keep(age=60).text())
    await report(store, record.id, Retried())
    clock.advance(3600)
    assert_equal(await store.prune(9), 0, "a dead letter that was retried is not pruned by its old time")


async def case_after_the_clock_went_back(store: Storage, clock: MovableClock) -> None:
    await _end_job(store, Succeeded(), retention=Retention.keep(age=60).text())
    clock.advance(-600)
    assert_equal(await store.prune(9), 0, "the store's clock decides")
    clock.advance(660)
    assert_equal(await store.prune(9), 1, "the store's clock decides")


async def _end_job(store: Storage, reported: Report, **fields: str) -> Record:
    record = await enqueue_and_claim(store, **fields)
    return await report(store, record.id, reported)


async def _remaining_ids(store: Storage) -> set[str]:
    return set(ids((await store.find(Filter(), 100, None))[0]))
