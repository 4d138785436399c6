"""prune: ended jobs go when they are past their time or too many, and never while somebody holds them."""

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
    Hand,
    accepted,
    changed,
    claim,
    ids,
    job,
    refused,
    repeated,
    running,
    same,
    say,
    seen,
    told,
    unique,
)

BRIEF = (Retention.keep(age=0), Retention.keep(last=0), Retention.keep(last=0, age=5))
LAST_TWO = Retention.keep(last=2).text()
FOR_EVER = Retention.keep().text()


async def case_past_their_age(store: Storage, clock: Hand) -> None:
    aged = Retention.keep(age=60).text()
    gone = [await _ended(store, said, retention=aged) for said in (Succeeded(), Skipped())]
    kept = await _ended(store, Succeeded(), retention=FOR_EVER)
    waiting = job(delay=3600 * SECOND)
    await store.enqueue([waiting])
    clock.advance(59.999999)
    same(await store.prune(9), 0, "a microsecond too early")
    clock.advance(0.000001)
    same(await store.prune(9), 2, "from prune_at on; prune tells how many jobs")
    same(await _left(store), {kept.id, waiting.id}, "what has no age, and what waits, stays")
    clock.advance(540)
    same(await store.prune(9), 2, "ten minutes after their end they are removed")
    same(await store.get(ids(gone)), [None, None], "they are gone")


async def case_nothing_is_removed_within_ten_minutes(store: Storage, clock: Hand) -> None:
    """An enqueue is repeated for a minute after a broken connection: it must find its first self."""
    new = [job(retention=rule.text(), dead_retention=rule.text()) for rule in BRIEF for _ in range(2)]
    await store.enqueue(new)
    for number, record in enumerate(await claim(store, 9)):
        accepted(await say(store, record, Died("x") if number % 2 else Succeeded("1")), "the end")
    same(await store.prune(9), 6, "what is kept no more is taken away")
    same((await _left(store), await store.count(Filter())), (set(), 0), "nobody sees it any more")
    same(
        await store.enqueue(new),
        [EnqueueResult(each.id) for each in new],
        "an enqueue that is repeated is no duplicate",
    )
    same(await claim(store, 9), [], "and runs nothing again")
    clock.advance(599.999999)
    same(await store.prune(9), 0, "a microsecond too early")
    clock.advance(0.000001)
    same(await store.prune(9), 6, "ten minutes after its end it is removed")
    same(await store.get(ids(new)), [None] * 6, "then it is gone")


async def case_what_is_hidden_is_as_it_was(store: Storage, clock: Hand) -> None:
    for retention in BRIEF:
        record = await running(store, retention=retention.text())
        ended = await told(store, record.id, Succeeded('"r"'))
        clock.advance(7)
        same(await store.prune(9), 1, "taken away")
        until = (ended.finished_at or 0) + HIDDEN_FOR
        hidden = await seen(store, record.id)
        fields = {"hidden": True, "prune_at": until, "keep_last": None, "version": ended.version + 1}
        changed(ended, hidden, "a prune within ten minutes", **fields)
        repeated(await say(store, record, Succeeded('"r"')), "its holder's word, said again")
        refused(await say(store, ended, Deleted()), Refusal.STALE, "a word about it as it was before")
        same(await store.prune(9), 0, "it is taken away once")


async def case_a_dead_letter_that_is_hidden(store: Storage, clock: Hand) -> None:
    ended = await _ended(store, Died("x"), dead_retention=Retention.keep(last=0).text())
    same(await store.prune(9), 1, "taken away")
    refused(await say(store, ended, Retried()), Refusal.STALE, "the retry of a dead letter that was taken away")
    same(await store.count(Filter(states=(State.DEAD,))), 0, "it is no dead letter any more")
    hidden = await seen(store, ended.id)
    same((hidden.state, hidden.reason), (State.DEAD, "x"), "who waits for it hears how it ended")


async def case_removed_at_once_after_ten_minutes(store: Storage, clock: Hand) -> None:
    records = [await _ended(store, Succeeded(), retention=retention.text()) for retention in BRIEF]
    clock.advance(600)
    same(await store.prune(9), 3, "nobody repeats anything so long after")
    same(await store.get(ids(records)), [None] * 3, "they are gone")


async def case_hidden_ones_take_no_places(store: Storage, clock: Hand) -> None:
    records = []
    for _ in range(4):
        records.append(await _ended(store, Succeeded(), retention=LAST_TWO))
        clock.advance(1)
    same(await store.prune(9), 2, "all beyond the newest two")
    same(await store.prune(9), 0, "what is hidden is not counted again")
    records.append(await _ended(store, Succeeded(), retention=LAST_TWO))
    same(await store.prune(9), 1, "one more ended, one more goes")
    same(await _left(store), {records[3].id, records[4].id}, "the newest stay")


async def case_hidden_ones_hold_no_key(store: Storage, clock: Hand) -> None:
    owner = unique("active", retention=Retention.keep(last=0).text())
    await store.enqueue([owner])
    await claim(store)
    await told(store, owner.id, Succeeded())
    await store.prune(9)
    other = unique("active")
    same(await store.enqueue([other]), [EnqueueResult(other.id)], "the key of a job that was taken away is free")


async def case_days_are_counted_exactly(store: Storage, clock: Hand) -> None:
    for days in (1, 7):
        await _ended(store, Succeeded(), retention=Retention.keep(age=days * 86_400).text())
    same(await store.prune(9), 0, "kept for days")
    clock.advance(86_399)
    same(await store.prune(9), 0, "a second too early")
    clock.advance(1)
    same(await store.prune(9), 1, "kept for a day")
    clock.advance(6 * 86_400 - 1)
    same(await store.prune(9), 0, "a second too early")
    clock.advance(1)
    same(await store.prune(9), 1, "kept for a week")


async def case_age_is_counted_from_the_end(store: Storage, clock: Hand) -> None:
    record = await running(store, retention=Retention.keep(age=60).text())
    clock.advance(50)
    await store.renew([record.hold])
    await told(store, record.id, Succeeded())
    clock.advance(50)
    same(await store.prune(9), 0, "the age of an ended job is counted from its end")


async def case_limit(store: Storage, clock: Hand) -> None:
    for _ in range(5):
        await _ended(store, Succeeded(), retention=Retention.keep(age=0).text())
    counts = [await store.prune(2) for _ in range(4)]
    same(counts, [2, 2, 1, 0], "at most `limit` at a time, until nothing is left")


async def case_hidden_ones_after_ten_minutes(store: Storage, clock: Hand) -> None:
    await _ended(store, Succeeded(), retention=FORGET)
    deleted = job()
    await store.enqueue([deleted])
    await told(store, deleted.id, Deleted())
    clock.advance(599)
    same(await store.prune(9), 0, "hidden rows stay for ten minutes, so that repeated words find them")
    clock.advance(1)
    same(await store.prune(9), 2, "and go then")


async def case_the_newest_of_a_task(store: Storage, clock: Hand) -> None:
    records = []
    for _ in range(5):
        records.append(await _ended(store, Succeeded(), retention=LAST_TWO))
        clock.advance(1)
    other = await _ended(store, Succeeded(), task="other", retention=LAST_TWO)
    same(await store.prune(9), 3, "all beyond the newest two of the task")
    same(await _left(store), {records[3].id, records[4].id, other.id}, "the newest stay; each task has its own count")


async def case_newest_by_end_then_id(store: Storage, clock: Hand) -> None:
    records = [await running(store, retention=LAST_TWO) for _ in range(4)]
    await told(store, records[0].id, Succeeded())
    clock.advance(1)
    for record in (records[3], records[1], records[2]):
        await told(store, record.id, Succeeded())
    await store.prune(9)
    same(await _left(store), {records[2].id, records[3].id}, "newest by finished_at, then by id")


async def case_dead_ones_are_counted_apart(store: Storage, clock: Hand) -> None:
    kept = {"retention": LAST_TWO, "dead_retention": LAST_TWO}
    records = []
    for said in (Died("x"), Succeeded(), Skipped(), Died("x"), Succeeded(), Died("x")):
        records.append(await _ended(store, said, **kept))
        clock.advance(1)
    same(await store.prune(9), 2, "one dead letter and one other beyond the newest two")
    wanted = {records[position].id for position in (2, 3, 4, 5)}
    same(await _left(store), wanted, "dead letters are counted apart from the others")


async def case_keep_none(store: Storage, clock: Hand) -> None:
    await _ended(store, Succeeded(), retention=Retention.keep(last=0).text())
    same(await store.prune(9), 1, "last=0 keeps none")


async def case_each_row_by_its_own_rule(store: Storage, clock: Hand) -> None:
    records = []
    for retention in (FOR_EVER, LAST_TWO, FOR_EVER, FOR_EVER, LAST_TWO):
        records.append(await _ended(store, Succeeded(), retention=retention))
        clock.advance(1)
    same(await store.prune(9), 1, "a row with last=2 goes when there are two newer ones, whatever their rule")
    wanted = {records[position].id for position in (0, 2, 3, 4)}
    same(await _left(store), wanted, "rows kept for ever stay")


async def case_hidden_ones_are_not_counted(store: Storage, clock: Hand) -> None:
    first = await _ended(store, Succeeded(), retention=Retention.keep(last=1).text())
    clock.advance(1)
    second = await _ended(store, Succeeded(), retention=Retention.keep(last=1).text())
    await told(store, second.id, Deleted())
    same(await store.prune(9), 0, "a deleted job is not among the newest")
    same(await _left(store), {first.id}, "the newest visible one stays")


async def case_both_age_and_number(store: Storage, clock: Hand) -> None:
    both = Retention.keep(last=2, age=60).text()
    for _ in range(3):
        await _ended(store, Succeeded(), retention=both)
        clock.advance(1)
    same(await store.prune(9), 1, "beyond the newest two")
    clock.advance(60)
    same(await store.prune(9), 2, "past their age")


async def case_never_one_that_carries_a_hold(store: Storage, clock: Hand) -> None:
    none = Retention.keep(last=0, age=0).text()
    cancelled, deleted = await running(store, retention=none), await running(store)
    await told(store, cancelled.id, Cancelled())
    await told(store, deleted.id, Deleted())
    clock.advance(3600)
    same(await store.prune(9), 0, "an ended job that still carries a hold is not pruned")
    for lapsed in await store.lapsed(9, LONG_ENOUGH):
        await say(store, lapsed, LeaseLapsed())
    same(await store.prune(9), 2, "it goes when the hold is given up")


async def case_a_hold_does_not_shield_others(store: Storage, clock: Hand) -> None:
    now_gone = Retention.keep(age=0).text()
    held = await running(store, retention=now_gone)
    await told(store, held.id, Cancelled())
    clock.advance(1)
    await _ended(store, Succeeded(), retention=now_gone)
    same(await store.prune(1), 1, "held jobs do not use up the limit")


async def case_a_retried_dead_letter_stays(store: Storage, clock: Hand) -> None:
    record = await _ended(store, Died("x"), dead_retention=Retention.keep(age=60).text())
    await told(store, record.id, Retried())
    clock.advance(3600)
    same(await store.prune(9), 0, "a dead letter that was retried is not pruned by its old time")


async def case_after_the_clock_went_back(store: Storage, clock: Hand) -> None:
    await _ended(store, Succeeded(), retention=Retention.keep(age=60).text())
    clock.advance(-600)
    same(await store.prune(9), 0, "the store's clock decides")
    clock.advance(660)
    same(await store.prune(9), 1, "the store's clock decides")


async def _ended(store: Storage, said: Report, **fields: str) -> Record:
    record = await running(store, **fields)
    return await told(store, record.id, said)


async def _left(store: Storage) -> set[str]:
    return set(ids((await store.find(Filter(), 100, None))[0]))
