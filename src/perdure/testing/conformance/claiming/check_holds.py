"""check: read whether holds are still valid, and change nothing."""

from __future__ import annotations

import msgspec

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Cancelled, Deleted, Failed, LeaseLapsed, Succeeded
from perdure.core.record import Hold
from perdure.storage.contract import Refusal, Storage

from ..tools import (
    LONG_ENOUGH,
    MovableClock,
    assert_accepted,
    assert_equal,
    assert_refused,
    assert_unchanged,
    enqueue_and_claim,
    fault,
    job,
    read_job,
    report,
)


async def case_a_valid_hold(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(5)
    assert_accepted((await store.check([record.hold]))[0], "the check of a valid hold")
    assert_unchanged(record, await read_job(store, record.id), "a check")


async def case_a_lease_that_is_over_but_not_reaped(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    clock.advance(3600)
    assert_accepted((await store.check([record.hold]))[0], "the check of a lease that was not reaped")
    assert_equal(len(await store.lapsed(9, LONG_ENOUGH)), 1, "a check prolongs nothing")


async def case_refusals(store: Storage, clock: MovableClock) -> None:
    cancelled, deleted, done, failed, reaped, held = [await enqueue_and_claim(store) for _ in range(6)]
    clock.advance(60)
    for lapsed in await store.lapsed(9, LONG_ENOUGH):
        if lapsed.id == reaped.id:
            await report(store, lapsed.id, LeaseLapsed())
    await report(store, cancelled.id, Cancelled())
    await report(store, deleted.id, Deleted())
    await report(store, done.id, Succeeded())
    await report(store, failed.id, Failed(fault(), delay=SECOND))
    zombie = msgspec.structs.replace(held.hold, stamp=new_stamp())
    holds = [cancelled.hold, deleted.hold, done.hold, failed.hold, reaped.hold, zombie, Hold(job().id, 1, 1)]
    verdicts = await store.check([*holds, held.hold])
    assert_equal(verdicts, [*await store.renew(holds), verdicts[-1]], "check answers what renew would answer")
    wanted = ("CANCELLED", "NOT_FOUND", "COMPLETED", "TAKEN", "TAKEN", "TAKEN", "NOT_FOUND")
    for verdict, why in zip(verdicts, wanted, strict=False):
        assert_refused(verdict, Refusal[why], "the check of a hold that is lost")
    assert_accepted(verdicts[-1], "the check of a hold beside lost ones")


async def case_nothing_to_check(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.check([]), [], "an empty list is answered by an empty list")
