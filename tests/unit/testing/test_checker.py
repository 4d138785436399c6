"""The judge itself: it accepts a good history, and finds each kind of crime when one is planted."""

from __future__ import annotations

import pytest

from perdure.testing.checker import BrokenPromise, History, check, read_events


def row(**fields) -> dict:
    return {
        "id": "a", "task": "t", "state": "succeeded", "attempt": 1, "failures": 0, "losses": 0, "max_attempts": 3,
        "stamp": None, "result": '{"attempt": 1}', "unique_key": None, "holds_key": 0, **fields,
    }  # fmt: skip


def move(was, now, version, **fields) -> dict:
    return {
        "id": "a", "was": was, "now": now, "version": version, "attempt": 1, "stamp": None, "accepted_stamp": None,
        "failures": 0, "losses": 0, "key": None, "holds_key": 0, "worker": None, **fields,
    }  # fmt: skip


ACKNOWLEDGED = {"event": "acknowledged", "id": "a"}
BEGAN = {"event": "began", "id": "a", "attempt": 1}
ENQUEUED = move(None, "ready", 1, attempt=0)
CLAIMED = move("ready", "running", 2, stamp=7)
SUCCEEDED = move("running", "succeeded", 3, accepted_stamp=7, worker="w")
ENDED = {"event": "ended", "id": "a", "attempt": 1}
LIMITED = [BEGAN | {"at": 1.0, "limit": "l", "at_most": 1}, ENDED | {"at": 2.0}]
FOLLOWED = [
    move(None, "blocked", 1, id="b", number=1),
    move("blocked", "ready", 2, id="b", number=2),
]
GOOD = dict(events=[ACKNOWLEDGED, BEGAN], rows=[row()], moves=[ENQUEUED, CLAIMED, SUCCEEDED])

CRIMES = {
    "I1: b was acknowledged": dict(events=[ACKNOWLEDGED, BEGAN, {"event": "acknowledged", "id": "b"}]),
    "I1: a (t) is still ready": dict(rows=[row(state="ready")]),
    "I1: a (t) ended and still carries": dict(rows=[row(stamp=5)]),
    "no handler of it ever began": dict(events=[ACKNOWLEDGED]),
    "I2: a went from succeeded to ready": dict(moves=[ENQUEUED, CLAIMED, SUCCEEDED, move("succeeded", "ready", 4)]),
    "I2: a was running and then came from ready": dict(moves=[ENQUEUED, CLAIMED, move("ready", "cancelled", 3)]),
    "without a new version": dict(moves=[ENQUEUED, CLAIMED, move("running", "succeeded", 2)]),
    "came back from the dead": dict(moves=[ENQUEUED, CLAIMED, move("running", "dead", 3), move("dead", "ready", 4)]),
    "I3: attempt 1 of a began 2 times": dict(events=[ACKNOWLEDGED, BEGAN, BEGAN]),
    "was handed out 2 times": dict(moves=[ENQUEUED, CLAIMED, move("running", "ready", 3), CLAIMED | {"version": 4}]),
    "I4: a (t) holds the result of attempt 1, its last is 2": dict(rows=[row(attempt=2)]),
    "I4: a succeeded 2 times": dict(moves=[ENQUEUED, CLAIMED, SUCCEEDED, SUCCEEDED]),
    "I5: a (t) has attempt 1, but attempt 2 began": dict(events=[ACKNOWLEDGED, BEGAN, BEGAN | {"attempt": 2}]),
    "I5: a (t) counts more": dict(rows=[row(failures=1, losses=1)]),
    "I5: a was claimed 1 times and has attempt 2": dict(moves=[ENQUEUED, CLAIMED, SUCCEEDED | {"attempt": 2}]),
    "I5: a went from 0 to 2 failures": dict(moves=[ENQUEUED, CLAIMED, SUCCEEDED | {"failures": 2}]),
    "counted as a failure and as a loss": dict(moves=[ENQUEUED, CLAIMED, SUCCEEDED | {"failures": 1, "losses": 1}]),
    "I5: a was charged with the loss of w": dict(
        events=[ACKNOWLEDGED, BEGAN, {"event": "killed", "worker": "w", "held": ["a", "b"]}],
        moves=[ENQUEUED, CLAIMED, move("running", "ready", 3, losses=1, worker="w")],
    ),
    "I6: a (t) is dead with 1 failures of 3": dict(rows=[row(state="dead", failures=1)]),
    "I6: a (t) failed 4 times": dict(rows=[row(state="dead", failures=4, attempt=4)]),
    "though its budget is spent": dict(rows=[row(failures=3, attempt=3, result=None)]),
    "I7: the transactional effect of a happened 2": dict(effects=[{"job": "a", "attempt": 1}] * 2),
    "and the job is dead": dict(
        rows=[row(state="dead", failures=3, attempt=3)], effects=[{"job": "a", "attempt": 1}]
    ),
    "without its transactional effect": dict(
        events=[ACKNOWLEDGED, BEGAN, {"event": "ended", "id": "a", "transactional": True}]
    ),
    "I8: b (t) is stranded": dict(rows=[row(), row(id="b", state="blocked", after='["a"]')]),
    "I8: b (t) began before a (t) was over": dict(
        events=[ACKNOWLEDGED, BEGAN, BEGAN | {"id": "b"}, ENDED], rows=[row(), row(id="b", after='["a"]')]
    ),
    "I8: b (t) began before c (t) was over": dict(
        events=[ACKNOWLEDGED, BEGAN, ENDED, BEGAN | {"id": "b"}, BEGAN | {"id": "c"}],
        rows=[row(next_id="c"), row(id="b", after='["a"]'), row(id="c")],
    ),
    "ran before a (t) had ended by the store's clock": dict(
        events=[ACKNOWLEDGED, BEGAN, ENDED, BEGAN | {"id": "b"}],
        rows=[row(finished_at=8), row(id="b", after='["a"]', started_at=7)],
    ),
    "I8: a was released 2 times": dict(
        moves=[move(None, "blocked", 1), move("blocked", "ready", 2), move("blocked", "ready", 3)]
    ),
    "I8: b (t) was released before a (t) had ended": dict(
        events=[ACKNOWLEDGED, BEGAN, ENDED, BEGAN | {"id": "b"}],
        rows=[row(), row(id="b", after='["a"]')],
        moves=[ENQUEUED, CLAIMED, *FOLLOWED, SUCCEEDED | {"number": 9}],
    ),
    "I10: 2 jobs under limit 'l' ran at once, 1 are allowed": dict(
        events=[ACKNOWLEDGED, *LIMITED, *(event | {"id": "b", "at": event["at"] + 0.5} for event in LIMITED)],
        rows=[row(), row(id="b")],
    ),
    "I12: key 'k' of scope any has 2 owners": dict(
        events=[ACKNOWLEDGED, BEGAN]
        + [{"event": "acknowledged", "id": id, "scope": "any", "key": "k", "duplicate": False} for id in "ab"],
        rows=[row(), row(id="b", state="cancelled")],
    ),
    "I12: key 'k' is held by 2 jobs": dict(
        rows=[row(unique_key="k", holds_key=1), row(id="b", state="cancelled", unique_key="k", holds_key=1)]
    ),
    "I12: key 'k' was held by a and b at once": dict(
        moves=[ENQUEUED | {"key": "k", "holds_key": 1}, ENQUEUED | {"id": "b", "key": "k", "holds_key": 1}]
    ),
    "I14: a (t) is on record": dict(events=[ACKNOWLEDGED, BEGAN, {"event": "rolled_back", "id": "a"}]),
    "I14: b ran": dict(
        events=[ACKNOWLEDGED, BEGAN, BEGAN | {"id": "b"}, {"event": "rolled_back", "id": "b"}],
    ),
}  # fmt: skip


def test_a_good_history_is_accepted():
    check(History(**GOOD))


def test_a_limit_is_kept_by_one_after_the_other_and_by_holds_that_were_lost():
    later = [event | {"id": "b", "at": event["at"] + 1.0} for event in LIMITED]
    lost = [LIMITED[0] | {"attempt": 1}, LIMITED[1] | {"attempt": 1, "at": 9.0}]  # a zombie: its second attempt counts
    again = [LIMITED[0] | {"attempt": 2, "at": 5.0}, LIMITED[1] | {"attempt": 2, "at": 6.0}]
    check(History([ACKNOWLEDGED, *LIMITED, *later], [row(), row(id="b")]))
    check(History([ACKNOWLEDGED, *lost, *again, *later], [row(attempt=2, result=None), row(id="b")]))


def test_a_follower_of_a_dead_letter_may_wait():
    dead = row(state="dead", failures=3, attempt=3, result=None)
    blocked = row(id="b", state="blocked", after='["a"]', attempt=0, result=None)
    check(History([ACKNOWLEDGED, BEGAN], [dead, blocked, blocked | {"id": "c", "after": '["b"]'}]))
    with pytest.raises(BrokenPromise, match="stranded"):
        check(History([ACKNOWLEDGED, BEGAN], [dead, blocked | {"run_when": "finished"}]))


@pytest.mark.parametrize("crime", CRIMES)
def test_a_planted_crime_is_found(crime):
    with pytest.raises(BrokenPromise) as found:
        check(History(**{**GOOD, **CRIMES[crime]}))
    assert crime in str(found.value)


def test_a_line_that_its_writer_could_not_finish_is_left_out(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"event": "began", "id": "a"}\n{"event": "end')
    assert read_events(path) == [{"event": "began", "id": "a"}]


def test_the_judge_knows_nothing_of_the_code_under_test():
    import ast
    from pathlib import Path

    from perdure.testing import checker

    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not {name for name in imported if name.startswith((".", "perdure"))}
