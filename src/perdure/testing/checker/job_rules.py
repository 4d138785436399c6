"""Rules about single jobs, I1 to I6: losses, moves, holds, successes, counters and deaths."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from .history import FINAL, Entry, History, moves_by_job, name_of, result_of

LOSSES_ALLOWED = 3
# A copy on purpose: a table shared with the code under test could not reveal a mistake in it.
LEGAL = {
    None: {"ready", "scheduled", "blocked"},
    "blocked": {"ready", "scheduled", "cancelled"},
    "scheduled": {"ready", "cancelled"},
    "ready": {"running", "cancelled"},
    "running": {"succeeded", "skipped", "dead", "cancelled", "scheduled", "ready"},
    "succeeded": set[str](),
    "skipped": set[str](),
    "dead": {"ready"},
    "cancelled": set[str](),
}


# ---- I1: nothing is lost -------------------------------------------------------------------------
def find_lost_jobs(history: History) -> Iterator[str]:
    rows = {row["id"]: row for row in history.rows}
    gone = history.ids("deleted")
    for id in history.ids("acknowledged") - rows.keys() - gone:
        yield f"I1: {id} was acknowledged and is not on record"
    for row in rows.values():
        if history.drained and row["state"] not in FINAL and row["state"] != "blocked":
            yield f"I1: {name_of(row)} is still {row['state']} after the drain"
        if row["state"] in FINAL and row.get("stamp") is not None and history.drained:
            yield f"I1: {name_of(row)} ended and still carries a hold"
    if history.drained:
        touched = history.ids("began")
        for row in rows.values():
            if row["state"] == "succeeded" and row["id"] not in touched:
                yield f"I1: {name_of(row)} succeeded and no handler of it ever began"


# ---- I2: only legal moves ------------------------------------------------------------------------
def find_illegal_moves(history: History) -> Iterator[str]:
    for id, moves in moves_by_job(history).items():
        for move in moves:
            was, now = move["was"], move["now"]
            if was != now and now not in LEGAL[was]:
                yield f"I2: {id} went from {was} to {now}"
            if was in FINAL and was == now and move.get("result_changed"):
                yield f"I2: {id} changed its result after it was {was}"
        for before, after in pairwise(moves):
            if after["was"] != before["now"]:
                yield f"I2: {id} was {before['now']} and then came from {after['was']}"
            if after["version"] < before["version"]:
                yield f"I2: {id} went back from version {before['version']} to {after['version']}"
            if after["was"] != after["now"] and after["version"] == before["version"]:
                yield f"I2: {id} became {after['now']} without a new version"
    retried = history.ids("retried")
    for id, moves in moves_by_job(history).items():
        if id not in retried and any(move["was"] == "dead" != move["now"] for move in moves):
            yield f"I2: {id} came back from the dead and nobody had asked for it"


# ---- I3: one hold per attempt --------------------------------------------------------------------
def find_double_holds(history: History) -> Iterator[str]:
    begun = Counter((event["id"], event["attempt"]) for event in history.of_kind("began"))
    for (id, attempt), times in begun.items():
        if times > 1:
            yield f"I3: attempt {attempt} of {id} began {times} times"
    stamps: Counter[tuple[str, int, int]] = Counter()
    for move in history.moves:
        if move["now"] == "running" and move["was"] != "running":
            stamps[move["id"], move["attempt"], move["stamp"]] += 1
            if move["stamp"] is None:
                yield f"I3: {move['id']} was claimed without a stamp"
    for (id, attempt, stamp), times in stamps.items():
        if times > 1:
            yield f"I3: hold ({id}, {attempt}, {stamp}) was handed out {times} times"


# ---- I4: one accepted success --------------------------------------------------------------------
def find_double_successes(history: History) -> Iterator[str]:
    for row in history.rows:
        result = result_of(row)
        if row["state"] == "succeeded" and isinstance(result, dict) and "attempt" in result:
            if result["attempt"] != row["attempt"]:
                yield f"I4: {name_of(row)} holds the result of attempt {result['attempt']}, its last is {row['attempt']}"
    for id, moves in moves_by_job(history).items():
        ends = [move for move in moves if move["was"] == "running" and move["now"] == "succeeded"]
        if len(ends) > 1:
            yield f"I4: {id} succeeded {len(ends)} times"
        accepted_stamp = Counter(
            move["accepted_stamp"]
            for before, move in pairwise(moves)
            if move["accepted_stamp"] not in (None, before["accepted_stamp"])
        )
        for stamp, times in accepted_stamp.items():
            if times > 1:
                yield f"I4: hold {stamp} of {id} was accepted {times} times"


# ---- I5: counters are exact ----------------------------------------------------------------------
def find_wrong_counts(history: History) -> Iterator[str]:
    begun: defaultdict[str, set[int]] = defaultdict(set)
    for event in history.of_kind("began"):
        begun[event["id"]].add(event["attempt"])
    for row in history.rows:
        beyond = [attempt for attempt in begun[row["id"]] if attempt > row["attempt"]]
        if beyond:
            yield f"I5: {name_of(row)} has attempt {row['attempt']}, but attempt {max(beyond)} began"
        if row["failures"] + row["losses"] > row["attempt"]:
            yield f"I5: {name_of(row)} counts more failures and losses than attempts"
    for id, moves in moves_by_job(history).items():
        claims = sum(move["now"] == "running" != move["was"] for move in moves)
        if moves[-1]["attempt"] != claims:
            yield f"I5: {id} was claimed {claims} times and has attempt {moves[-1]['attempt']}"
        for before, after in pairwise(moves):
            yield from _compare_counters(id, before, after)
    yield from _find_wrong_losses(history)


def _find_wrong_losses(history: History) -> Iterator[str]:
    """A lost worker is charged to a job only if that job was alone in it."""
    held = {event["worker"]: event["held"] for event in history.of_kind("killed")}
    for id, moves in moves_by_job(history).items():
        for before, after in pairwise(moves):
            beside = held.get(after.get("worker"), [id])
            if after["losses"] > before["losses"] and beside != [id]:
                yield f"I5: {id} was charged with the loss of {after['worker']}, which held {len(beside)} jobs"


def _compare_counters(id: str, before: Entry, after: Entry) -> Iterator[str]:
    claimed = after["now"] == "running" != after["was"]
    if after["attempt"] - before["attempt"] != int(claimed):
        yield f"I5: {id} went from attempt {before['attempt']} to {after['attempt']} as it became {after['now']}"
    retried = after["was"] == "dead" and after["now"] == "ready"
    for counter in ("failures", "losses"):
        change = after[counter] - before[counter]
        if retried and after[counter] != 0:
            yield f"I5: {id} was retried and kept {after[counter]} {counter}"
        if change > 1 or (change and after["was"] != "running" and not retried):
            yield f"I5: {id} went from {before[counter]} to {after[counter]} {counter} as it became {after['now']}"
    if after["failures"] > before["failures"] and after["losses"] > before["losses"]:
        yield f"I5: one end of {id} counted as a failure and as a loss"


# ---- I6: deaths are deserved ---------------------------------------------------------------------
def find_undeserved_deaths(history: History) -> Iterator[str]:
    said_so = history.ids("died")
    for row in history.rows:
        budget = row.get("max_attempts")
        spent = budget is not None and row["failures"] >= budget
        poison = row["losses"] >= LOSSES_ALLOWED or (row["losses"] > 0 and budget == 1)
        if row["state"] == "dead" and not (spent or poison or row["id"] in said_so):
            yield f"I6: {name_of(row)} is dead with {row['failures']} failures of {budget} and {row['losses']} losses"
        if row["state"] == "dead" and budget is not None and row["failures"] > budget:
            yield f"I6: {name_of(row)} failed {row['failures']} times with a budget of {budget}"
        if row["state"] != "dead" and history.drained and row["state"] != "cancelled" and (spent or poison):
            yield f"I6: {name_of(row)} is {row['state']} though its budget is spent"
