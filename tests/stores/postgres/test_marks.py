"""The mark: full batches go on where the last one ended, and nothing that lies before it is lost."""

import pytest

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.contract import Claim, Want
from perdure.storage.postgres.claiming import claim as claims
from perdure.storage.postgres.claiming.claim import Marks
from perdure.storage.urls import opener
from perdure.testing.conformance.tools import ids, job
from tests.support.real_servers import kinds_with_a_store, server

KINDS = [kind for kind in kinds_with_a_store() if kind.startswith("postgres")]
WANT = Want(50)


def record(id="00000000-0000-7000-8000-000000000001", rank=5, **fields):
    given = dict(
        id=id, task="t", queue="q", state=State.RUNNING, priority=0, rank=rank, payload="", version=1, attempt=1, failures=0,
        losses=0, max_attempts=1, timeout=None, lease=1, backoff="", retention="", dead_retention="", created_at=1, run_at=1,
    )  # fmt: skip
    return Record(**{**given, **fields})


def full(**fields):
    return [record(**fields)] * WANT.limit


@pytest.fixture
def now(monkeypatch):
    """The machine's clock, in the test's hand."""
    clock = [1000.0]
    monkeypatch.setattr(claims, "monotonic", lambda: clock[0])
    return clock


def test_a_full_claim_sets_the_mark_and_a_second_later_it_is_gone(now):
    marks = Marks()
    assert marks.of(WANT, now[0]) is None
    marks.note(WANT, full(rank=7, priority=3), 0.001, from_start=True)
    assert marks.of(WANT, now[0]) == {("q", "t", ""): (-4, 7, record().id)}
    marks.note(WANT, full(rank=9, routing_key="x"), 0.001, from_start=False)
    assert marks.of(WANT, now[0])["q", "t", "=x"] == (-1, 9, record().id)
    assert marks.of(WANT, now[0] + 1.0) is None


def test_a_short_claim_begins_at_the_start(now):
    marks = Marks()
    marks.note(WANT, full(), 0.001, from_start=True)
    marks.note(WANT, [record()], 0.001, from_start=False)
    assert marks.of(WANT, now[0]) is None


def test_small_claims_always_begin_at_the_start(now):
    marks = Marks()
    small = Want(claims.MARKED_FROM - 1)
    marks.note(small, [record()] * small.limit, 10.0, from_start=True)
    assert marks.of(small, now[0]) is None


def test_slow_claims_from_the_start_take_a_twentieth_of_the_time(now):
    marks = Marks()
    marks.note(WANT, [record(rank=3)], 2.0, from_start=True)
    marks.note(WANT, [], 0.9, from_start=False)
    assert marks.of(WANT, now[0] + 39.9) == {("q", "t", ""): (-1, 3, record().id)}
    assert marks.of(WANT, now[0] + 40.0) is None
    now[0] += 40.0
    marks.note(WANT, [], 2.0, from_start=True)
    assert marks.of(WANT, now[0] + 39.9) == {("q", "t", ""): (-1, 3, record().id)}, "the mark outlives an empty claim"


def test_other_wants_have_marks_of_their_own(now):
    marks = Marks()
    marks.note(WANT, full(), 0.001, from_start=True)
    assert marks.of(Want(50, tasks=("t",)), now[0]) is None
    assert marks.of(Want(500), now[0]) is not None, "however many are wanted"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_lies_before_the_mark_is_found(kind, monkeypatch):
    store = opener(server(kind).fresh(), durability="relaxed")()
    await store.open()
    try:
        await store.enqueue([job() for _ in range(120)])
        begin = (await store.now()) - 3600 * SECOND
        first = await store.claim(Claim("w", new_stamp(), (WANT,)))
        early, urgent, elsewhere = job(at=begin), job(priority=9), job(at=begin, queue="elsewhere")
        await store.enqueue([early, urgent, elsewhere])
        second = await store.claim(Claim("w", new_stamp(), (WANT,)))
        assert not {early.id, urgent.id, elsewhere.id} & set(ids(second)), "a full batch goes on behind the mark"
        third = await store.claim(Claim("w", new_stamp(), (WANT,)))
        assert len(third) == 23, "what is left behind the mark, and because that is too few, what is before it"
        assert ids(third)[20:] == [urgent.id, early.id, elsewhere.id], "from the start, best first"
        assert len({*ids(first), *ids(second), *ids(third)}) == 123
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_lanes_without_a_mark_are_claimed_from_at_once(kind):
    """A full claim marks only the lanes that it claimed from. The next one finds the jobs of all others."""
    store = opener(server(kind).fresh(), durability="relaxed")()
    await store.open()
    try:
        await store.enqueue([job(queue=f"q{number}") for number in range(120)])
        claimed = [len(await store.claim(Claim("w", new_stamp(), (WANT,)))) for _ in range(3)]
        assert claimed == [50, 50, 20]
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_under_full_speed_it_is_found_within_the_time_between_two_starts(kind, monkeypatch):
    monkeypatch.setattr(claims, "START_EVERY", 0.0)
    monkeypatch.setattr(claims, "START_SHARE", 0)
    store = opener(server(kind).fresh(), durability="relaxed")()
    await store.open()
    try:
        await store.enqueue([job() for _ in range(120)])
        await store.claim(Claim("w", new_stamp(), (WANT,)))
        urgent = job(priority=9)
        await store.enqueue([urgent])
        assert ids(await store.claim(Claim("w", new_stamp(), (WANT,))))[0] == urgent.id
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_in_front_of_a_limit_too(kind):
    store = opener(server(kind).fresh(), durability="relaxed")()
    await store.open()
    limits = {"limits": '[["k",1000]]'}
    asked = Want(50, limited=True)
    try:
        await store.enqueue([job(**limits) for _ in range(120)])
        begin = (await store.now()) - 3600 * SECOND
        first = await store.claim(Claim("w", new_stamp(), (asked,)))
        early, urgent, elsewhere = job(at=begin, **limits), job(priority=9, **limits), job(queue="elsewhere", **limits)
        await store.enqueue([early, urgent, elsewhere])
        second = await store.claim(Claim("w", new_stamp(), (asked,)))
        assert not {early.id, urgent.id} & set(ids(second)), "a full batch goes on behind the mark"
        third = await store.exchange([], Claim("w", new_stamp(), (asked,)))
        assert len(third.claimed) == 21, "what is left behind the mark, and of lanes without one"
        assert third.next_due == 0, "there may be more before it"
        fourth = await store.exchange([], Claim("w", new_stamp(), (asked,)))
        assert ids(fourth.claimed) == [urgent.id, early.id], "a short claim: from the start, best first"
        assert fourth.next_due is None
        assert len({*ids(first), *ids(second), *ids(third.claimed)}) == 121
    finally:
        await store.close()
