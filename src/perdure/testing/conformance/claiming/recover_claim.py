"""recover_claim: the jobs of a claim whose answer was lost."""

from __future__ import annotations

from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, HandedBack, Succeeded
from perdure.storage.contract import Claim, Storage, Want

from ..tools import MovableClock, assert_equal, claim, ids, job, read_job, report


async def case_what_was_claimed(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(priority=n % 2) for n in range(6)])
    claimed = await store.claim(Claim("w1", 77, (Want(5),)))
    assert_equal(await store.recover_claim("w1", 77), claimed, "holding repeats the claim's answer")
    assert_equal(await store.recover_claim("w1", 77), claimed, "asking changes nothing")


async def case_only_of_this_worker_and_stamp(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(), job()])
    await store.claim(Claim("w1", 77, (Want(1),)))
    await store.claim(Claim("w1", 78, (Want(1),)))
    assert_equal(await store.recover_claim("w2", 77), [], "another worker's name")
    assert_equal(await store.recover_claim("w1", 79), [], "a claim that never came through")
    assert_equal(len(await store.recover_claim("w1", 78)), 1, "strays of another claim are not adopted")


async def case_not_what_has_ended(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(4)]
    await store.enqueue(jobs)
    stamp = new_stamp()
    await store.claim(Claim("w1", stamp, (Want(4),)))
    await report(store, jobs[0].id, Succeeded())
    await report(store, jobs[1].id, HandedBack())
    await report(store, jobs[2].id, Cancelled())
    assert_equal(
        await store.recover_claim("w1", stamp),
        [await read_job(store, jobs[3].id)],
        "recover_claim returns running jobs only",
    )


async def case_not_what_another_took(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job()])
    await store.claim(Claim("w1", 5, (Want(1),)))
    (held,) = await store.recover_claim("w1", 5)
    await report(store, held.id, HandedBack())
    claimed = await claim(store, 1, "w2")
    assert_equal(ids(claimed), [held.id], "the job goes to the next claimer")
    assert_equal(await store.recover_claim("w1", 5), [], "a job that another claim has is no longer held")
