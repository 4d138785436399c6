"""The board between runner and supervisor, and what is said about the jobs that stand on it when the runner is gone."""

from __future__ import annotations

import asyncio
import os

import pytest

from perdure import State
from perdure.core.backoff import DEFAULT_BACKOFF
from perdure.core.ids import new_id
from perdure.core.record import NewJob
from perdure.core.retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION
from perdure.storage.contract import Claim, Want
from perdure.storage.memory.store import MemoryStorage
from perdure.worker.health.crash_evidence import digest, ending
from perdure.worker.leases.held_jobs import HeldJobs
from perdure.worker.leases.status_board import (
    CLAIMED,
    ELSEWHERE,
    ENDED,
    POSITIONS,
    STARTED,
    RunnerBoard,
    SupervisorBoard,
    new_board,
)
from perdure.worker.running.attempt import Attempt
from perdure.worker.supervisor import loss_reports
from perdure.worker.supervisor.loss_reports import Death, report
from tests.support.waiting import eventually


@pytest.fixture
def boards():
    descriptor = new_board()
    yield RunnerBoard(descriptor), SupervisorBoard(descriptor)
    os.close(descriptor)


async def claimed(store, count: int, worker: str = "w", stamp: int = 7) -> list[Attempt]:
    jobs = [
        NewJob(
            id=new_id(), task="t", payload="{}", backoff=DEFAULT_BACKOFF.text(), retention=DEFAULT_RETENTION.text(),
            dead_retention=DEFAULT_DEAD_RETENTION.text(),
        )
        for _ in range(count)
    ]  # fmt: skip
    await store.enqueue(jobs)
    return [Attempt.of(record, None, 100.0) for record in await store.claim(Claim(worker, stamp, (Want(count),)))]


def begin(board: RunnerBoard, attempt: Attempt, status: int = STARTED) -> None:
    attempt.started_at, attempt.started_boot = 5, 101.0
    board.start(attempt, status)


async def test_the_supervisor_sees_what_the_runner_holds(boards):
    board, view = boards
    first, second, third = await claimed(MemoryStorage(), 3)
    board.publish([first, second, third])
    begin(board, second)
    board.clear(third)
    seen = {each.hold: each for each in view.seen()}
    assert set(seen) == {first.record.hold, second.record.hold}
    assert [seen[each.record.hold].status for each in (first, second)] == [CLAIMED, STARTED]
    assert seen[first.record.hold].deadline == float("inf")
    assert seen[second.record.hold].deadline == 101.0 + 300
    assert (seen[second.record.hold].lease, seen[second.record.hold].asked_at) == (60_000_000, 100.0)
    board.end(second)
    assert [each.status for each in view.seen()] == [CLAIMED, ENDED]
    assert view.confirmed == 1
    board.begin_claim(11)
    board.begin_claim(12)
    board.end_claim(11)
    assert view.claims() == [12]


async def test_a_renewal_reaches_the_hold_it_is_for_and_no_other(boards):
    board, view = boards
    first, second = await claimed(MemoryStorage(), 2)
    board.publish([first])
    (seen,) = view.seen()
    board.clear(first)
    board.publish([second])  # the same place
    view.write_renewal(seen, 500.0)  # the answer came late
    board.trust(second)
    assert second.asked_at == 100.0
    (seen,) = view.seen()
    view.write_renewal(seen, 120.0)
    board.trust(second)
    assert (second.asked_at, second.trusted_until) == (120.0, 120.0 + 54)


async def test_a_runner_renews_what_its_supervisor_does_not(boards):
    board, view = boards
    held = HeldJobs(board)
    (attempt,) = await claimed(MemoryStorage(), 1)
    held.add([attempt])
    assert held.due_for_renewal(121.0) == []  # a third is gone: it is the supervisor's turn
    (seen,) = view.seen()
    view.write_renewal(seen, 122.0)
    assert held.due_for_renewal(131.0) == []
    assert attempt.asked_at == 122.0
    assert held.due_for_renewal(151.0) == []
    assert held.due_for_renewal(152.0) == [attempt]  # half is gone, and nobody did


async def test_more_than_the_board_has_room_for_is_renewed_by_the_runner_alone(boards):
    board, _ = boards
    (attempt,) = await claimed(MemoryStorage(), 1)
    board._used = POSITIONS
    held = HeldJobs(board)
    held.add([attempt])
    assert attempt.board_position == -1
    assert held.due_for_renewal(120.0) == [attempt]
    held.drop(attempt)


async def gone(store, board: RunnerBoard, view: SupervisorBoard, **how) -> None:
    async def open_store():
        return store

    death = Death("w", "it fell", "last words", 9, list(view.seen()), view.claims(), view.given_up, **how)
    await report(open_store, death, asyncio.Event())


async def states(store, attempts) -> list[tuple]:
    records = await store.get([attempt.record.id for attempt in attempts])
    return [(record.state, record.losses, record.failures, record.suspect) for record in records]


FREE = (State.READY, 0, 0, False)


async def test_one_at_work_is_charged_and_nobody_else(boards):
    store = MemoryStorage()
    attempts = await claimed(store, 4)
    board, view = boards
    board.publish(attempts)
    begin(board, attempts[0])
    begin(board, attempts[1], ELSEWHERE)
    begin(board, attempts[2])
    board.end(attempts[2])
    await gone(store, board, view)
    assert await states(store, attempts) == [(State.READY, 1, 0, True), FREE, FREE, FREE]
    await gone(store, board, view)  # said again, it does nothing
    assert await states(store, attempts) == [(State.READY, 1, 0, True), FREE, FREE, FREE]


@pytest.mark.parametrize("thread_runs_on", [False, True])
async def test_several_are_suspects(boards, thread_runs_on):
    store = MemoryStorage()
    attempts = await claimed(store, 2)
    board, view = boards
    board.publish(attempts)
    for attempt in attempts[1 if thread_runs_on else 0 :]:
        begin(board, attempt)
    if thread_runs_on:
        board.count_given_up_thread()
    await gone(store, board, view)
    suspect = (State.READY, 0, 0, True)
    assert await states(store, attempts) == [FREE if thread_runs_on else suspect, suspect]


async def test_who_is_over_its_time_fails_and_the_others_go_back(boards):
    store = MemoryStorage()
    attempts = await claimed(store, 3)
    board, view = boards
    board.publish(attempts)
    begin(board, attempts[0])
    begin(board, attempts[1])
    await gone(store, board, view, overdue=frozenset([attempts[0].record.hold]))
    assert await states(store, attempts) == [(State.SCHEDULED, 0, 1, False), FREE, FREE]


async def test_what_a_claim_under_way_takes_after_the_death_goes_back(boards, monkeypatch):
    monkeypatch.setattr(loss_reports, "ASKED_AFTER", (0.0, 1.0))
    store, asked = MemoryStorage(), []
    recover = store.recover_claim

    async def noted(worker, stamp):
        asked.append(stamp)
        return await recover(worker, stamp)

    monkeypatch.setattr(store, "recover_claim", noted)
    board, view = boards
    board.begin_claim(7)
    reporting = asyncio.create_task(gone(store, board, view))
    await eventually(lambda: asked)
    strays = await claimed(store, 2)  # under the stamp of the dead runner's claim
    others = await claimed(store, 1, "another", 8)
    await reporting
    assert await states(store, strays) == [FREE, FREE]
    assert (await states(store, others))[0][0] is State.RUNNING


def test_the_evidence_of_a_crash_is_where_it_crashed():
    before = [f"line {number}" for number in range(100)]
    frames = [f'  File "x.py", line {number} in deep' for number in range(50)]
    text = "\n".join(
        [*before, "Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent first):", *frames]
    )
    told = digest(text).splitlines()
    assert told[0] == "line 80"
    assert told[-1] == '  File "x.py", line 7 in deep'
    assert digest("\n".join(before)).splitlines() == before[-40:]
    assert digest("\n".join([text, *before])).splitlines() == before[-40:], "a dump of long ago is not how it ended"
    assert ending(3) == "ended with exit code 3"
    assert ending(-11) == "was killed by SIGSEGV"
