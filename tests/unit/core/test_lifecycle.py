"""The rules of a job's life: every word in every state, counters, budgets, retention."""

import re
from pathlib import Path

import msgspec
import pytest

from perdure.core.backoff import Backoff
from perdure.core.clock import SECOND
from perdure.core.job import FINAL, State
from perdure.core.lifecycle import (
    ERRORS_KEPT,
    LOSSES_ALLOWED,
    MOVES,
    Cancelled,
    Change,
    Completed,
    Continued,
    Deleted,
    Died,
    Expired,
    Failed,
    HandedBack,
    HoldGuard,
    KeyMove,
    LeaseLapsed,
    OrdinarySuccess,
    Retried,
    RunnerLost,
    RunNow,
    Skipped,
    Snoozed,
    Stopped,
    Succeeded,
    VersionGuard,
    decide,
    draw_moves,
    success_of,
)
from perdure.core.record import Fault, NewJob, Record, faults_of, faults_text
from perdure.core.retention import HIDDEN_FOR, Retention
from perdure.errors import IllegalMove
from perdure.storage.rules.fast_path import are_ordinary_successes, is_ordinary_success

ID = "01900000-0000-7000-8000-000000000001"
STATES_PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "states.md"
DAY = 86_400 * SECOND
FAULT = Fault(4, "w1", 10, 20, "ValueError", "it broke", None)
WAITING = (State.BLOCKED, State.SCHEDULED, State.READY)

HOLD = HoldGuard(4, 77)
VERSION = VersionGuard(9)
LAPSED = VersionGuard(9, lapsed=True)


def record(state=State.RUNNING, **fields):
    """A job in the middle of its life: one failure, one loss, suspect; held if it runs."""
    held = {"stamp": 77, "leased_by": "w1", "leased_until": 99} if state is State.RUNNING else {}
    plain = dict(
        id=ID,
        task="t",
        queue="q",
        state=state,
        priority=0,
        rank=5,
        payload="{}",
        version=9,
        attempt=4,
        failures=1,
        losses=1,
        max_attempts=5,
        timeout=None,
        lease=60 * SECOND,
        backoff=Backoff.exponential(1.0, jitter=2.0).text(),
        retention=Retention.keep(last=7, age=86_400).text(),
        dead_retention=Retention.keep().text(),
        created_at=1,
        run_at=5,
        suspect=True,
        result='"old"',
        reason="before",
        unique_key="k",
        unique_scope="active",
    )
    return Record(**{**plain, **held, **fields})


def change(guard, state, **fields):
    """What is left of a job in the middle of its life by default: its counters."""
    return Change(ID, guard, state, **{"failures": 1, "losses": 1, **fields})


NEXT = NewJob(id="next", task="n", payload="{}", backoff="", retention="", dead_retention="")

WORDS = [
    Succeeded("1", started_at=10),
    Failed(FAULT, started_at=10),
    Snoozed(delay=30, reason="later", started_at=10),
    Skipped("nothing", "2", started_at=10),
    Died("bad", FAULT, started_at=10),
    HandedBack("shutdown"),
    Stopped(),
    LeaseLapsed(FAULT),
    Expired(),
    Cancelled("enough"),
    Retried(),
    RunNow(),
    Deleted(),
    Continued((NEXT,), started_at=10),
    Completed("3"),
    RunnerLost(FAULT, started_at=10),
]
(
    SUCCEEDED,
    FAILED,
    SNOOZED,
    SKIPPED,
    DIED,
    HANDED_BACK,
    STOPPED,
    LEASE_ENDED,
    EXPIRED,
    CANCELLED,
    RETRIED,
    HURRIED_UP,
    DELETED,
    CONTINUED,
    COMPLETED,
    RUNNER_LOST,
) = WORDS

ERRORS = faults_text([FAULT])
ENDED = dict(losses=0, keep=DAY, keep_last=7, started_at=10, key=KeyMove.FREE)
OUTSIDE = dict(keep=DAY, keep_last=7, key=KeyMove.FREE)
GIVEN_UP = Change(ID, LAPSED, None, key=KeyMove.FREE)
# upkeep's word about a job that has no lease: no store finds it lapsed
NO_LEASE = change(LAPSED, State.READY, suspect=True, reason="before", errors=ERRORS)

LEGAL = {
    (State.RUNNING, SUCCEEDED): change(HOLD, State.SUCCEEDED, result="1", **ENDED),
    (State.RUNNING, CONTINUED): change(HOLD, State.SUCCEEDED, next_id="next", adds=(NEXT,), **ENDED),
    (State.RUNNING, COMPLETED): change(VERSION, State.SUCCEEDED, result="3", keep=DAY, keep_last=7, keeps_hold=True),
    (State.RUNNING, SKIPPED): change(HOLD, State.SKIPPED, result="2", reason="nothing", **ENDED),
    (State.RUNNING, FAILED): change(
        HOLD, State.SCHEDULED, failures=2, losses=0, delay=3 * SECOND, errors=ERRORS, started_at=10
    ),
    (State.RUNNING, SNOOZED): change(
        HOLD, State.SCHEDULED, losses=0, delay=30, reason="later", started_at=10, pays=True
    ),
    (State.RUNNING, DIED): change(
        HOLD, State.DEAD, failures=2, losses=0, reason="bad", errors=ERRORS, started_at=10, key=KeyMove.FREE
    ),
    (State.RUNNING, HANDED_BACK): change(HOLD, State.READY, suspect=True, reason="shutdown"),
    (State.RUNNING, STOPPED): Change(ID, HoldGuard(4, 77, ended=True), None, key=KeyMove.FREE),
    (State.RUNNING, LEASE_ENDED): change(LAPSED, State.READY, suspect=True, reason="before", errors=ERRORS),
    (State.RUNNING, RUNNER_LOST): change(
        HOLD, State.READY, suspect=True, reason="before", errors=ERRORS, started_at=10
    ),
    (State.RUNNING, CANCELLED): change(
        VERSION, State.CANCELLED, reason="enough", keep=DAY, keep_last=7, keeps_hold=True
    ),
    (State.RUNNING, DELETED): change(
        VERSION, State.CANCELLED, reason="deleted", keep=HIDDEN_FOR, hidden=True, keeps_hold=True
    ),
    (State.SCHEDULED, HURRIED_UP): change(VERSION, State.READY, suspect=True, delay=0, reason="before"),
    (State.DEAD, RETRIED): Change(ID, VERSION, State.READY, delay=0, key=KeyMove.TAKE),
    (State.SCHEDULED, LEASE_ENDED): NO_LEASE,
    (State.BLOCKED, LEASE_ENDED): NO_LEASE,
    **{(state, COMPLETED): change(VERSION, State.SUCCEEDED, result="3", **OUTSIDE) for state in WAITING},
    **{(state, CANCELLED): change(VERSION, State.CANCELLED, reason="enough", **OUTSIDE) for state in WAITING},
    **{(state, EXPIRED): change(VERSION, State.CANCELLED, reason="expired", **OUTSIDE) for state in WAITING},
    **{
        (state, DELETED): change(
            VERSION, State.CANCELLED, reason="deleted", keep=HIDDEN_FOR, hidden=True, key=KeyMove.FREE
        )
        for state in WAITING
    },
    **{(state, LEASE_ENDED): GIVEN_UP for state in FINAL},
    **{
        (state, DELETED): change(
            VERSION,
            State.CANCELLED if state is State.DEAD else state,
            suspect=True,
            result='"old"',
            reason="before" if state in (State.SUCCEEDED, State.SKIPPED) else "deleted",
            keep=HIDDEN_FOR,
            hidden=True,
        )
        for state in FINAL
    },
}


@pytest.mark.parametrize("said", WORDS, ids=lambda said: type(said).__name__)
@pytest.mark.parametrize("state", State)
def test_every_word_in_every_state(state, said):
    wanted = LEGAL.get((state, said))
    if wanted is None:
        with pytest.raises(IllegalMove):
            decide(record(state), said, draw=0.5)
    else:
        assert decide(record(state), said, draw=0.5) == wanted


def test_every_move_of_a_change_is_in_the_table():
    moved = {(state, wanted.state) for (state, _), wanted in LEGAL.items() if wanted.state not in (None, state)}
    claimed_promoted_or_unblocked = {
        (State.READY, State.RUNNING),
        (State.SCHEDULED, State.READY),
        (State.BLOCKED, State.READY),
        (State.BLOCKED, State.SCHEDULED),
    }
    table = {(origin, target) for origin, targets in MOVES.items() for target in targets}
    assert moved | claimed_promoted_or_unblocked == table


def test_final_states_are_left_only_by_a_retry_or_the_deletion_of_a_dead_letter():
    left = {state: MOVES[state] for state in FINAL if MOVES[state]}
    assert left == {State.DEAD: {State.READY, State.CANCELLED}}


def test_the_drawing_on_the_page_is_the_table():
    page = STATES_PAGE.read_text(encoding="utf-8")
    found = re.search(r"<!-- drawing: begin -->\n```mermaid\n(.*?)\n```\n<!-- drawing: end -->", page, re.DOTALL)
    assert found is not None
    assert found.group(1) == draw_moves()
    for state in State:
        assert f"| `{state}` |" in page


# ---- the holder's words ----------------------------------------------------------------------------
def test_a_word_without_a_hold():
    with pytest.raises(IllegalMove, match="not held"):
        decide(record(stamp=None), SUCCEEDED)


@pytest.mark.parametrize(
    ("max_attempts", "failures", "state"),
    [
        (5, 1, State.SCHEDULED),
        (5, 3, State.SCHEDULED),
        (5, 4, State.DEAD),
        (5, 9, State.DEAD),
        (1, 0, State.DEAD),
        (None, 0, State.SCHEDULED),
        (None, 10_000, State.SCHEDULED),
    ],
)
def test_the_budget_is_exact(max_attempts, failures, state):
    decided = decide(record(max_attempts=max_attempts, failures=failures), FAILED)
    assert (decided.state, decided.failures) == (state, failures + 1)
    if state is State.DEAD:
        assert decided.reason == f"failed {failures + 1} of {max_attempts} attempts"
        assert decided.key is KeyMove.FREE


def test_attempts_that_were_snoozed_do_not_use_up_the_budget():
    tired = record(attempt=50, failures=0, max_attempts=2)
    assert decide(tired, SNOOZED).failures == 0
    assert decide(tired, FAILED).state is State.SCHEDULED


def test_a_failure_that_is_not_retried():
    decided = decide(record(failures=0), Failed(FAULT, retryable=False))
    assert (decided.state, decided.failures, decided.reason) == (State.DEAD, 1, "ValueError is not retried")


@pytest.mark.parametrize(
    ("failures", "delay"), [(0, 1), (1, 2), (2, 4), (10, 1024), (11, 2048), (12, 3600), (5000, 3600)]
)
@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_backoff_grows_and_the_draw_places_the_jitter(failures, delay, draw):
    decided = decide(record(failures=failures, max_attempts=None), Failed(FAULT), draw=draw)
    assert decided.delay == delay * SECOND + draw * 2 * SECOND


def test_a_delay_of_its_own_beats_the_backoff():
    assert decide(record(), Failed(FAULT, delay=0)).delay == 0
    at = decide(record(), Failed(FAULT, at=123))
    assert (at.delay, at.at) == (None, 123)


def test_the_last_errors_are_kept_newest_last():
    job = record(max_attempts=None, errors=None)
    for number in range(ERRORS_KEPT + 5):
        said = Failed(msgspec.structs.replace(FAULT, message=str(number)))
        job = msgspec.structs.replace(job, errors=decide(job, said).errors)
    assert [fault.message for fault in faults_of(job.errors)] == [str(number) for number in range(5, 25)]


@pytest.mark.parametrize("said", [SUCCEEDED, FAILED, SNOOZED, SKIPPED, DIED], ids=lambda said: type(said).__name__)
def test_any_normal_end_clears_losses_and_suspicion(said):
    decided = decide(record(losses=2, suspect=True), said)
    assert (decided.losses, decided.suspect) == (0, False)


def test_handing_back_clears_nothing():
    decided = decide(record(losses=2, failures=2, suspect=True), HandedBack())
    assert (decided.losses, decided.failures, decided.suspect) == (2, 2, True)


def test_dead_without_an_error_keeps_the_errors():
    assert decide(record(), Died("no")).errors is None


@pytest.mark.parametrize(
    ("retention", "keep", "keep_last", "hidden"),
    [
        (Retention.delete(), HIDDEN_FOR, None, True),
        (Retention.keep(), None, None, False),
        (Retention.keep(last=0), None, 0, False),
        (Retention.keep(age=5), 5 * SECOND, None, False),
    ],
)
def test_retention(retention, keep, keep_last, hidden):
    lived = record(retention=retention.text(), dead_retention=Retention.keep().text())
    dying = record(retention=Retention.keep().text(), dead_retention=retention.text())
    for decided in (decide(lived, SUCCEEDED), decide(lived, SKIPPED), decide(lived, CANCELLED), decide(dying, DIED)):
        assert (decided.keep, decided.keep_last, decided.hidden) == (keep, keep_last, hidden)


# ---- ended from outside ----------------------------------------------------------------------------
@pytest.mark.parametrize("state", sorted(FINAL))
def test_an_ended_job_that_is_held_can_be_stopped_and_deleted(state):
    held = record(state, stamp=77)
    assert decide(held, STOPPED) == Change(ID, HoldGuard(4, 77, ended=True), None, key=KeyMove.FREE)
    assert decide(held, DELETED).keeps_hold
    with pytest.raises(IllegalMove):
        decide(held, SUCCEEDED)
    with pytest.raises(IllegalMove):
        decide(held, SNOOZED)


def test_what_is_hidden_is_gone():
    for said in (DELETED, RETRIED):
        with pytest.raises(IllegalMove):
            decide(record(State.DEAD, hidden=True), said)


@pytest.mark.parametrize(
    ("scope", "move"),
    [("active", KeyMove.TAKE), ("waiting", KeyMove.LEAVE), ("any", KeyMove.LEAVE), (None, KeyMove.LEAVE)],
)
def test_a_retried_dead_letter_takes_only_an_active_key(scope, move):
    assert decide(record(State.DEAD, unique_scope=scope), RETRIED).key is move


# ---- lost workers ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("losses", "charged", "state", "counted"),
    [
        (0, True, State.READY, 1),
        (1, True, State.READY, 2),
        (2, True, State.DEAD, 3),
        (2, False, State.READY, 2),
        (0, False, State.READY, 0),
    ],
)
@pytest.mark.parametrize(("word", "guard"), [(LeaseLapsed, LAPSED), (RunnerLost, HOLD)])
def test_three_charged_losses_are_poison(losses, charged, state, counted, word, guard):
    decided = decide(record(losses=losses), word(FAULT, charged=charged))
    assert (decided.state, decided.losses, decided.failures) == (state, counted, 1)
    assert decided.guard == guard
    if state is State.DEAD:
        assert decided.reason == f"poison: {LOSSES_ALLOWED} workers died while running it"
        assert decided.key is KeyMove.FREE


@pytest.mark.parametrize("word", [LeaseLapsed, RunnerLost])
def test_a_job_with_one_attempt_dies_with_its_worker_only_if_charged(word):
    once = record(max_attempts=1, losses=0, failures=0)
    charged = decide(once, word(FAULT, charged=True))
    assert (charged.state, charged.reason) == (State.DEAD, "poison: 1 worker died while running it")
    assert decide(once, word(FAULT)).state is State.READY


def test_a_runner_lost_with_a_job_that_was_ended_from_outside_only_gives_up_the_hold():
    ended = record(State.CANCELLED, stamp=77, leased_by="w1", leased_until=99)
    assert decide(ended, RunnerLost(FAULT, charged=True)) == decide(ended, Stopped())


@pytest.mark.parametrize(
    ("before", "said", "after"),
    [
        (False, LeaseLapsed(), False),
        (False, LeaseLapsed(suspect=True), True),
        (False, LeaseLapsed(charged=True), True),
        (True, LeaseLapsed(), True),
        (False, RunnerLost(), False),
        (False, RunnerLost(suspect=True), True),
        (False, RunnerLost(charged=True), True),
    ],
)
def test_suspects(before, said, after):
    assert decide(record(suspect=before, losses=0), said).suspect is after


def test_a_lost_worker_leaves_time_and_place():
    decided = decide(record(), LeaseLapsed())
    assert (decided.delay, decided.at, decided.errors, decided.reason) == (None, None, None, "before")


def test_every_word_is_in_this_table():
    from typing import get_args

    from perdure.core.lifecycle import Report

    assert {type(said) for said in WORDS} == set(get_args(Report))


# ---- the short way of successes --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("retention", "plain"),
    [
        (Retention.keep(), True),
        (Retention.keep(age=86_400), True),
        (Retention.keep(last=5), False),
        (Retention.delete(), False),
    ],
)
def test_a_success_told_the_short_way_says_the_same(retention, plain):
    job = record(retention=retention.text())
    short, long = success_of(job, '"done"', 11), decide(job, Succeeded('"done"', 11))
    assert msgspec.structs.asdict(short) == msgspec.structs.asdict(long)
    assert (type(short) is OrdinarySuccess) is plain
    # whoever does not look at the kind finds the same by the fields
    assert is_ordinary_success(short) is is_ordinary_success(long) is plain
    assert are_ordinary_successes([short, short]) is are_ordinary_successes([long, long]) is plain


@pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
def test_only_a_running_job_succeeds_the_short_way(state):
    with pytest.raises(IllegalMove):
        success_of(record(state), None, None)


def test_only_a_held_job_succeeds_the_short_way():
    with pytest.raises(IllegalMove, match="not held by anybody"):
        success_of(record(stamp=None), None, None)
