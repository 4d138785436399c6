"""claim: which jobs a worker gets, in which order, and what a claim writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import ANY, Routing, State
from perdure.core.lifecycle import Failed, HandedBack, LeaseLapsed, Succeeded, decide
from perdure.core.record import ROW_VERSION, NewJob, Record
from perdure.storage.contract import Claim, ExchangeResult, Storage, Want

from ..tools import (
    LEASE,
    LONG_ENOUGH,
    MovableClock,
    assert_accepted,
    assert_changed_only,
    assert_equal,
    assert_true,
    enqueue_and_claim,
    fault,
    ids,
    job,
    read_job,
    report,
)
from ..tools import claim as claim_some


async def case_what_a_claim_writes(store: Storage, clock: MovableClock) -> None:
    new = job(lease=45 * SECOND)
    await store.enqueue([new])
    before = await read_job(store, new.id)
    clock.advance(3)
    stamp = new_stamp()
    claimed = await store.claim(Claim("w1", stamp, (Want(1),)))
    after = await read_job(store, new.id)
    assert_equal(claimed, [after], "a claim hands out the row as it is after the claim")
    wanted = {
        "state": State.RUNNING,
        "attempt": 1,
        "version": before.version + 1,
        "stamp": stamp,
        "leased_by": "w1",
        "leased_until": await store.now() + 45 * SECOND,
    }
    assert_changed_only(before, after, "a claim", **wanted)


async def case_priority_then_rank_then_id(store: Storage, clock: MovableClock) -> None:
    now = await store.now()
    late, early = job(at=now - 1), job(at=now - 2)
    high, low = job(priority=7), job(priority=-7, at=now - 99)
    first, second = job(), job()
    await store.enqueue([second, low, late, high, early, first])
    wanted = ids([high, early, late, *sorted([first, second], key=lambda new: new.id), low])
    assert_equal(ids(await claim_some(store, 10)), wanted, "priority descending, then rank, then id")


async def case_best_first_over_queues_and_tasks(store: Storage, clock: MovableClock) -> None:
    jobs = [job(queue=f"q{n % 3}", task=f"t{n % 2}", routing_key=("x", None)[n % 2], priority=n) for n in range(12)]
    await store.enqueue(jobs)
    wanted = [ids(reversed(jobs))[n : n + 5] for n in (0, 5, 10)]
    queues, tasks = ("q0", "q1", "q2"), ("t0", "t1")
    found = [ids(await claim_some(store, 5, queues=queues, tasks=tasks)) for _ in range(3)]
    assert_equal(found, wanted, "best first over all wanted queues and tasks")


async def case_best_first_over_very_many_queues(store: Storage, clock: MovableClock) -> None:
    jobs = [
        job(queue=f"q{n % 200}", task=f"t{n % 3}", routing_key=("x", None)[n % 2], priority=n * 7 % 11)
        for n in range(400)
    ]
    await store.enqueue(jobs)
    await store.pause("q7", True)

    def best(found: Callable[[NewJob], bool]) -> list[str]:
        return ids(sorted(filter(found, jobs), key=lambda new: (-new.priority, new.id)))

    everyone = best(lambda new: new.queue != "q7")
    assert_equal(ids(await claim_some(store, 5)), everyone[:5], "best first over every queue but the paused one")
    jobs = [new for new in jobs if new.id not in everyone[:5]]
    wanted = best(lambda new: new.queue != "q7" and new.task == "t1" and new.routing_key == "x")[:9]
    found = await claim_some(store, 9, tasks=("t1", "t9"), routing="x")
    assert_equal(ids(found), wanted, "best first over every queue, of a task and a routing key")
    jobs = [new for new in jobs if new.id not in wanted]
    wanted = best(lambda new: new.queue in ("q5", "q9"))
    assert_equal(
        ids(await claim_some(store, 99, queues=("q5", "q7", "q9"))),
        wanted,
        "all of the named queues that are not paused",
    )
    jobs = [new for new in jobs if new.id not in wanted]
    await store.pause("q7", False)
    assert_equal(ids(await claim_some(store, 400)), best(lambda _: True), "what is left, of the resumed queue too")


async def case_limit(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job() for _ in range(5)])
    assert_equal(await claim_some(store, 0), [], "limit 0 gets nothing")
    assert_equal(len(await claim_some(store, 3)), 3, "at most `limit` jobs")
    assert_equal(len(await claim_some(store, 3)), 2, "what is left")
    assert_equal(await claim_some(store, 3), [], "nothing is claimed twice")


async def case_wants_in_turn(store: Storage, clock: MovableClock) -> None:
    mail = [job(queue="mail", priority=n) for n in range(3)]
    bulk = [job(queue="bulk", priority=9) for _ in range(3)]
    await store.enqueue([*bulk, *mail])
    wants = (Want(2, queues=("mail",)), Want(2), Want(9, queues=("mail",)))
    claimed = await store.claim(Claim("w1", new_stamp(), wants))
    wanted = [mail[2].id, mail[1].id, bulk[0].id, bulk[1].id, mail[0].id]
    assert_equal(ids(claimed), wanted, "each want in turn takes up to its limit; answered in claim order")
    assert_equal({record.attempt for record in claimed}, {1}, "no job is claimed twice by overlapping wants")


async def case_queues_and_tasks(store: Storage, clock: MovableClock) -> None:
    jobs = {(queue, task): job(queue=queue, task=task) for queue in ("a", "b") for task in ("s", "t")}
    await store.enqueue(list(jobs.values()))
    assert_equal(await claim_some(store, 9, queues=("none",)), [], "a queue without jobs")
    assert_equal(await claim_some(store, 9, queues=()), [], "no queue at all")
    assert_equal(await claim_some(store, 9, tasks=()), [], "no task at all")
    assert_equal(await claim_some(store, 9, queues=("A",)), [], "names are compared exactly")
    assert_equal(ids(await claim_some(store, 9, queues=("b",), tasks=("t",))), [jobs["b", "t"].id], "queue and task")
    assert_equal(ids(await claim_some(store, 9, tasks=("t",))), [jobs["a", "t"].id], "a task in all queues")
    rest = [jobs["a", "s"].id, jobs["b", "s"].id]
    assert_equal(ids(await claim_some(store, 9, queues=("a", "b"))), rest, "all tasks of two queues")


async def case_routing_keys(store: Storage, clock: MovableClock) -> None:
    wanted: dict[Routing, list[int]] = {None: [0], "x": [1], "y": [2], "z": [], ANY: [0, 1, 2]}
    for routing, positions in wanted.items():
        jobs = [job(), job(routing_key="x"), job(routing_key="y")]
        await store.enqueue(jobs)
        found = ids(await claim_some(store, 9, routing=routing))
        assert_equal(found, [jobs[position].id for position in positions], f"a claim with routing {routing!r}")
        await claim_some(store, 9)


async def case_paused_queue(store: Storage, clock: MovableClock) -> None:
    held, free = job(queue="held"), job(queue="free")
    before = await enqueue_and_claim(store, queue="held")
    await store.pause("held", True)
    await store.enqueue([held, free])
    assert_equal(ids(await claim_some(store, 9)), [free.id], "jobs of a paused queue are not claimed")
    assert_equal(await claim_some(store, 9, queues=("held",)), [], "not even when that queue is asked for")
    assert_accepted(
        (await store.apply([decide(before, Succeeded())]))[0], "the end of a job that ran when it was paused"
    )
    await store.pause("held", False)
    assert_equal(ids(await claim_some(store, 9)), [held.id], "resumed jobs are claimed")


async def case_suspects_only_alone(store: Storage, clock: MovableClock) -> None:
    suspect = await _suspect(store, clock)
    plain = job()
    await store.enqueue([plain])
    answer = await _exchange(store, Want(9))
    assert_equal(ids(answer.claimed), [plain.id], "a plain want gets no suspects")
    assert_true(answer.suspects, "the answer says that there is a suspect for a want with `alone`")
    assert_equal(
        (await _exchange(store, Want(9, tasks=("other",)))).suspects, False, "a suspect of another task is not reported"
    )
    answer = await _exchange(store, Want(9, alone=True))
    assert_equal(ids(answer.claimed), [suspect.id], "a want with `alone` gets only suspects")
    assert_equal(answer.suspects, False, "there is no further suspect")
    assert_true(answer.claimed[0].suspect, "a claim leaves the mark")
    after = await report(store, suspect.id, HandedBack())
    assert_true(after.suspect, "a suspect that is handed back stays one")


async def case_suspects_of_a_paused_queue(store: Storage, clock: MovableClock) -> None:
    await _suspect(store, clock)
    await store.pause("default", True)
    assert_equal((await _exchange(store, Want(9))).suspects, False, "suspects of a paused queue cannot be had")


async def case_expired_jobs_are_not_claimed(store: Storage, clock: MovableClock) -> None:
    late, fine = job(expires=10 * SECOND, priority=9), job(expires=11 * SECOND)
    await store.enqueue([late, fine])
    clock.advance(10)
    assert_equal(
        ids(await claim_some(store, 9)), [fine.id], "a job is expired from expires_at on, and never claimed then"
    )


async def case_a_started_job_does_not_expire(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, expires=10 * SECOND)
    now = await store.now()
    await report(store, record.id, Failed(fault(), delay=20 * SECOND, started_at=now))
    clock.advance(20)
    assert_equal(ids(await claim_some(store)), [record.id], "a job that started in time is retried after expires_at")


async def case_a_job_that_never_started_expires(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store, expires=10 * SECOND)
    await report(store, record.id, HandedBack())
    clock.advance(10)
    assert_equal(await claim_some(store), [], "a job that was claimed but never started can still expire")


async def case_rows_of_a_newer_version(store: Storage, clock: MovableClock) -> None:
    newer, ours = job(min_version=ROW_VERSION + 1, priority=9), job()
    await store.enqueue([newer, ours])
    assert_equal(ids(await claim_some(store, 9)), [ours.id], "a row whose min_version we do not know is left alone")


async def case_due_jobs_are_promoted_first(store: Storage, clock: MovableClock) -> None:
    due, later = job(delay=10 * SECOND), job(delay=11 * SECOND)
    await store.enqueue([later, due])
    before = await read_job(store, due.id)
    answer = await _exchange(store, Want(9))
    assert_equal((answer.claimed, answer.next_due), ([], 10 * SECOND), "nothing is due; next_due says when")
    clock.advance(10)
    answer = await _exchange(store, Want(9))
    assert_equal(ids(answer.claimed), [due.id], "a scheduled job is claimed from run_at on")
    assert_equal(answer.claimed[0].version, before.version + 2, "promotion and claim each raise the version")
    assert_equal(answer.next_due, SECOND, "next_due of the one that is left")


async def case_promoted_though_not_wanted(store: Storage, clock: MovableClock) -> None:
    new = job(delay=SECOND)
    await store.enqueue([new])
    clock.advance(1)
    await _exchange(store, Want(0))
    assert_equal((await read_job(store, new.id)).state, State.READY, "a claim makes due jobs ready, whatever it takes")


async def case_next_due_of_nothing(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(), job(waits=1)])
    assert_equal((await _exchange(store, Want(9))).next_due, None, "next_due is None when nothing is scheduled")
    await store.enqueue([job(delay=SECOND)])
    assert_equal((await store.exchange(())).next_due, None, "next_due is returned only with a claim")


async def case_more_due_than_a_chunk(store: Storage, clock: MovableClock) -> None:
    jobs = [job(delay=SECOND) for _ in range(store.chunk + 3)]
    await store.enqueue(jobs[: store.chunk])
    await store.enqueue(jobs[store.chunk :])
    clock.advance(5)
    answer = await _exchange(store, Want(1))
    assert_true(answer.next_due in (0, None), f"next_due is 0 when a job is due already, not {answer.next_due}")
    left = store.chunk + 2
    while answer.claimed and left:
        answer = await _exchange(store, Want(store.chunk))
        left -= len(answer.claimed)
    assert_equal(left, 0, "claim after claim gets all that is due")


async def case_a_batch_keeps_its_order(store: Storage, clock: MovableClock) -> None:
    batches = [[job() for _ in range(30)] for _ in range(3)]
    for batch in batches:
        await store.enqueue(batch)
    found = [id for _ in range(10) for id in ids(await claim_some(store, 9))]
    assert_equal(found, [new.id for batch in batches for new in batch], "a batch is claimed in its list order")


async def case_claims_at_once_are_disjoint(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(60)]
    await store.enqueue(jobs)
    answers = await asyncio.gather(*(claim_some(store, 10, f"w{n}") for n in range(8)))
    claimed = [record.id for answer in answers for record in answer]
    assert_equal(len(claimed), len(set(claimed)), "no job is handed to two claimers")
    assert_equal(set(claimed), set(ids(jobs)), "every job is handed out")


async def case_attempt_counts_claims(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    stamps = {record.stamp}
    for attempt in range(2, 6):
        await report(store, record.id, HandedBack())
        (record,) = await claim_some(store)
        assert_equal(record.attempt, attempt, "attempt = number of claims")
        stamps.add(record.stamp)
    assert_equal(len(stamps), 5, "each claim writes its own stamp")


async def case_started_at_is_cleared(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await report(store, record.id, Failed(fault(), delay=0, started_at=await store.now()))
    assert_equal((await claim_some(store))[0].started_at, None, "a claim clears started_at")


async def case_apply_then_claim_in_one_exchange(store: Storage, clock: MovableClock) -> None:
    back, done = await enqueue_and_claim(store), await enqueue_and_claim(store)
    fresh = job()
    await store.enqueue([fresh])
    decided = [decide(back, HandedBack()), decide(done, Succeeded("1"))]
    answer = await store.exchange(decided, Claim("w2", new_stamp(), (Want(9),)))
    for verdict in answer.verdicts:
        assert_accepted(verdict, "a change beside a claim")
    assert_equal(ids(answer.claimed), [back.id, fresh.id], "changes are applied before the claim reads")
    assert_equal(answer.claimed[0].attempt, 2, "a job handed back and claimed in one exchange")


async def _exchange(store: Storage, *wants: Want) -> ExchangeResult:
    answer = await store.exchange((), Claim("w1", new_stamp(), wants))
    return ExchangeResult(list(answer.verdicts), list(answer.claimed), answer.next_due, answer.suspects)


async def _suspect(store: Storage, clock: MovableClock) -> Record:
    await enqueue_and_claim(store, lease=LEASE)
    clock.advance(60)
    (lapsed,) = await store.lapsed(9, LONG_ENOUGH)
    return await report(store, lapsed.id, LeaseLapsed(suspect=True))
