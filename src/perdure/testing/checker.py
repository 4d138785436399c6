"""A judge of recorded histories. It knows nothing of Perdure's code: it reads what programs wrote down and what the
store held in the end, and says which promises were broken.

A history has three parts.

- `events`: JSON objects, one a line, in the order in which they were written. Each has `event` and mostly `id`:
  acknowledged (a verb that enqueues returned this id; with `key`, `scope`, `duplicate` where it had a unique key),
  rolled_back (this id was enqueued in a transaction that was undone), began and ended (a handler, with `attempt`,
  `pid` and `at` in seconds; began also with `limit` and `at_most` where a limit on running jobs holds), effect (a
  handler's plain side effect), died (the handler said that nothing can help), cancelled, retried, deleted (an admin's
  word took hold), killed (a `worker`, with the ids that it `held`).
- `rows`: the jobs as the store held them after all faults were over and everything had drained, column by column.
- `effects`: rows (`job`, `attempt`) that handlers wrote in the transaction of their completion.
- `moves`: where the store was watched, every change of a row as it was committed: `id`, `was`, `now`, `attempt`,
  `stamp`, `accepted_stamp`, `failures`, `losses`, `version`, `key`, `holds_key`, and `worker`, whose hold ended by it.

Invariants are named as in the project's list: I1 nothing lost … I14 nothing left by a rollback.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

FINAL = frozenset({"succeeded", "skipped", "dead", "cancelled"})
LOSSES_ALLOWED = 3
# Written down a second time on purpose: a table shared with the code under test could not catch a mistake in it.
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
OVER = ("ended", "died", "cancelled")  # events of a job that may let its followers go

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """What was written down, and what was there in the end."""

    events: Sequence[Entry]
    rows: Sequence[Entry]
    effects: Sequence[Entry] = ()
    moves: Sequence[Entry] = ()
    drained: bool = True
    _by_kind: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list), repr=False)

    def __post_init__(self) -> None:
        for event in self.events:
            self._by_kind[event["event"]].append(event)

    def said(self, kind: str) -> Sequence[Entry]:
        return self._by_kind.get(kind, ())

    def ids(self, kind: str) -> set[str]:
        return {event["id"] for event in self.said(kind)}


class BrokenPromise(AssertionError):
    """A history in which something happened that must not."""


def read_events(path: Path | str) -> list[dict[str, Any]]:
    """The events of a file; a last line that its writer could not finish is left out.

    >>> read_events("/nonexistent")
    []
    """
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def check(history: History) -> None:
    """Raise BrokenPromise with every violation of this history.

    >>> row = {"id": "a", "state": "ready", "attempt": 0, "failures": 0, "losses": 0}
    >>> check(History([{"event": "acknowledged", "id": "a"}], [row], drained=False))
    >>> check(History([{"event": "acknowledged", "id": "b"}], [row], drained=False))
    Traceback (most recent call last):
    perdure.testing.checker.BrokenPromise: I1: b was acknowledged and is not on record
    """
    broken = list(violations(history))
    if broken:
        more = f"\n… and {len(broken) - 20} more" if len(broken) > 20 else ""
        raise BrokenPromise("\n".join(broken[:20]) + more)


def violations(history: History) -> Iterator[str]:
    """Every broken promise, in words."""
    yield from _nothing_lost(history)
    yield from _legal_paths(history)
    yield from _one_hold(history)
    yield from _one_success(history)
    yield from _exact_counts(history)
    yield from _deaths_deserved(history)
    yield from _effects_once(history)
    yield from _followers_in_order(history)
    yield from _limits_kept(history)
    yield from _keys_unique(history)
    yield from _rollbacks_leave_nothing(history)


# ---- I1 --------------------------------------------------------------------------------------------
def _nothing_lost(history: History) -> Iterator[str]:
    rows = {row["id"]: row for row in history.rows}
    gone = history.ids("deleted")
    for id in history.ids("acknowledged") - rows.keys() - gone:
        yield f"I1: {id} was acknowledged and is not on record"
    for row in rows.values():
        if history.drained and row["state"] not in FINAL and row["state"] != "blocked":
            yield f"I1: {_named(row)} is still {row['state']} after the drain"
        if row["state"] in FINAL and row.get("stamp") is not None and history.drained:
            yield f"I1: {_named(row)} ended and still carries a hold"
    if history.drained:
        touched = history.ids("began")
        for row in rows.values():
            if row["state"] == "succeeded" and row["id"] not in touched:
                yield f"I1: {_named(row)} succeeded and no handler of it ever began"


# ---- I2 --------------------------------------------------------------------------------------------
def _legal_paths(history: History) -> Iterator[str]:
    for id, moves in _moves_by_job(history).items():
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
    for id, moves in _moves_by_job(history).items():
        if id not in retried and any(move["was"] == "dead" != move["now"] for move in moves):
            yield f"I2: {id} came back from the dead and nobody had asked for it"


# ---- I3 --------------------------------------------------------------------------------------------
def _one_hold(history: History) -> Iterator[str]:
    begun = Counter((event["id"], event["attempt"]) for event in history.said("began"))
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


# ---- I4 --------------------------------------------------------------------------------------------
def _one_success(history: History) -> Iterator[str]:
    for row in history.rows:
        told = _result_of(row)
        if row["state"] == "succeeded" and isinstance(told, dict) and "attempt" in told:
            if told["attempt"] != row["attempt"]:
                yield f"I4: {_named(row)} holds the result of attempt {told['attempt']}, its last is {row['attempt']}"
    for id, moves in _moves_by_job(history).items():
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


# ---- I5 --------------------------------------------------------------------------------------------
def _exact_counts(history: History) -> Iterator[str]:
    begun: defaultdict[str, set[int]] = defaultdict(set)
    for event in history.said("began"):
        begun[event["id"]].add(event["attempt"])
    for row in history.rows:
        beyond = [attempt for attempt in begun[row["id"]] if attempt > row["attempt"]]
        if beyond:
            yield f"I5: {_named(row)} has attempt {row['attempt']}, but attempt {max(beyond)} began"
        if row["failures"] + row["losses"] > row["attempt"]:
            yield f"I5: {_named(row)} counts more failures and losses than attempts"
    for id, moves in _moves_by_job(history).items():
        claims = sum(move["now"] == "running" != move["was"] for move in moves)
        if moves[-1]["attempt"] != claims:
            yield f"I5: {id} was claimed {claims} times and has attempt {moves[-1]['attempt']}"
        for before, after in pairwise(moves):
            yield from _counted(id, before, after)
    yield from _charged_rightly(history)


def _charged_rightly(history: History) -> Iterator[str]:
    """A lost worker is charged to a job only if that job was alone in it."""
    held = {event["worker"]: event["held"] for event in history.said("killed")}
    for id, moves in _moves_by_job(history).items():
        for before, after in pairwise(moves):
            beside = held.get(after.get("worker"), [id])
            if after["losses"] > before["losses"] and beside != [id]:
                yield f"I5: {id} was charged with the loss of {after['worker']}, which held {len(beside)} jobs"


def _counted(id: str, before: Entry, after: Entry) -> Iterator[str]:
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


# ---- I6 --------------------------------------------------------------------------------------------
def _deaths_deserved(history: History) -> Iterator[str]:
    said_so = history.ids("died")
    for row in history.rows:
        budget = row.get("max_attempts")
        spent = budget is not None and row["failures"] >= budget
        poison = row["losses"] >= LOSSES_ALLOWED or (row["losses"] > 0 and budget == 1)
        if row["state"] == "dead" and not (spent or poison or row["id"] in said_so):
            yield f"I6: {_named(row)} is dead with {row['failures']} failures of {budget} and {row['losses']} losses"
        if row["state"] == "dead" and budget is not None and row["failures"] > budget:
            yield f"I6: {_named(row)} failed {row['failures']} times with a budget of {budget}"
        if row["state"] != "dead" and history.drained and row["state"] != "cancelled" and (spent or poison):
            yield f"I6: {_named(row)} is {row['state']} though its budget is spent"


# ---- I7 --------------------------------------------------------------------------------------------
def _effects_once(history: History) -> Iterator[str]:
    rows = {row["id"]: row for row in history.rows}
    written: defaultdict[str, list[int]] = defaultdict(list)
    for effect in history.effects:
        written[effect["job"]].append(effect["attempt"])
    for id, attempts in written.items():
        row = rows.get(id)
        if len(attempts) > 1:
            yield f"I7: the transactional effect of {id} happened {len(attempts)} times, in attempts {attempts}"
        if row is not None and (row["state"] != "succeeded" or row["attempt"] not in attempts):
            yield f"I7: attempt {attempts} of {_named(row)} left its effect, and the job is {row['state']}"
    for event in history.said("ended"):
        row = rows.get(event["id"])
        if (
            event.get("transactional")
            and row is not None
            and row["state"] == "succeeded"
            and event["id"] not in written
        ):
            yield f"I7: {_named(row)} succeeded without its transactional effect"


# ---- I8 --------------------------------------------------------------------------------------------
def _followers_in_order(history: History) -> Iterator[str]:
    rows = {row["id"]: row for row in history.rows}
    first_begun, first_over = _first(history, ("began",)), _first(history, OVER)
    retried = history.ids("retried")
    for row in history.rows:
        parents = [_end_of_chain(rows, parent) for parent in _parents_of(row)]
        if row["state"] == "blocked" and history.drained and not any(_holds_back(row, each) for each in parents):
            yield f"I8: {_named(row)} is stranded: nobody it waits for will end any more"
        began = first_begun.get(row["id"])
        for parent in parents:
            over = first_over.get(parent["id"]) if parent is not None else None
            if began is not None and parent is not None and (over is None or over > began):
                yield f"I8: {_named(row)} began before {_named(parent)} was over"
            again = parent is not None and parent["id"] in retried and row.get("run_when") == "finished"
            if parent is not None and not again and _overlap(row, parent):
                yield f"I8: {_named(row)} ran before {_named(parent)} had ended by the store's clock"
    yield from _released_once(history, rows)


def _released_once(history: History, rows: Mapping[str, Entry]) -> Iterator[str]:
    by_job = _moves_by_job(history)
    for id, moves in by_job.items():
        released = [move for move in moves if move["was"] == "blocked" != move["now"]]
        if len(released) > 1:
            yield f"I8: {id} was released {len(released)} times"
        row = rows.get(id)
        if row is None or not released or released[0]["now"] == "cancelled":
            continue
        for parent in (_end_of_chain(rows, each) for each in _parents_of(row)):
            good = FINAL if row.get("run_when") == "finished" else {"succeeded", "skipped"}
            ended = [] if parent is None else [each for each in by_job.get(parent["id"], ()) if each["now"] in good]
            if parent is not None and not (ended and ended[0]["number"] < released[0]["number"]):
                yield f"I8: {_named(row)} was released before {_named(parent)} had ended"


def _first(history: History, kinds: Iterable[str]) -> dict[str, int]:
    """Where each job's first event of these kinds stands in the history."""
    places: dict[str, int] = {}
    for place, event in enumerate(history.events):
        if event["event"] in kinds and event.get("id") is not None:
            places.setdefault(event["id"], place)
    return places


def _parents_of(row: Entry) -> list[str]:
    ids: list[str] = json.loads(row.get("after") or "[]")
    return ids


def _end_of_chain(rows: Mapping[str, Entry], id: str) -> Entry | None:
    """The job that a chain ended with; None when a part of it is not on record."""
    row = rows.get(id)
    while row is not None and row.get("next_id") is not None:
        row = rows.get(row["next_id"])
    return row


def _holds_back(row: Entry, parent: Entry | None) -> bool:
    """Whether a job rightly waits for another one after the drain."""
    return parent is not None and (
        parent["state"] == "blocked" or (parent["state"] == "dead" and row.get("run_when") != "finished")
    )


def _overlap(row: Entry, parent: Entry) -> bool:
    began, over = row.get("started_at"), parent.get("finished_at")
    return began is not None and over is not None and began < over


# ---- I10 -------------------------------------------------------------------------------------------
def _limits_kept(history: History) -> Iterator[str]:
    """At most so many at once, among the attempts whose success was accepted: those were held from their begin to their end,
    and no other attempt says for sure how long its hold stood."""
    accepted = {(row["id"], row["attempt"]) for row in history.rows if row["state"] == "succeeded"}
    ended = {(event["id"], event.get("attempt")): event["at"] for event in history.said("ended") if "at" in event}
    steps: defaultdict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for event in history.said("began"):
        held = (event["id"], event["attempt"])
        if "limit" in event and held in accepted and held in ended:
            steps[event["limit"], event["at_most"]] += [(event["at"], 1), (ended[held], -1)]
    for (name, at_most), changes in steps.items():
        running = most = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        if most > at_most:
            yield f"I10: {most} jobs under limit {name!r} ran at once, {at_most} are allowed"


# ---- I12 -------------------------------------------------------------------------------------------
def _keys_unique(history: History) -> Iterator[str]:
    owners: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    fresh: Counter[tuple[str, str]] = Counter()
    for event in history.said("acknowledged"):
        if event.get("scope") == "any":
            name = (event["scope"], event["key"])
            owners[name].add(event["id"])
            fresh[name] += not event["duplicate"]
    for (scope, key), ids in owners.items():
        if len(ids) > 1 or fresh[scope, key] > 1:
            yield f"I12: key {key!r} of scope {scope} has {len(ids)} owners, and {fresh[scope, key]} callers were told so"
    held = Counter(row["unique_key"] for row in history.rows if row.get("holds_key") and row.get("unique_key"))
    yield from (f"I12: key {key!r} is held by {times} jobs in the end" for key, times in held.items() if times > 1)
    holder: dict[str, str] = {}
    for move in history.moves:
        taken = move.get("key")
        if taken is not None and move["holds_key"] and holder.setdefault(taken, move["id"]) != move["id"]:
            yield f"I12: key {taken!r} was held by {holder[taken]} and {move['id']} at once"
        if taken is not None and not move["holds_key"] and holder.get(taken) == move["id"]:
            del holder[taken]


# ---- I14 -------------------------------------------------------------------------------------------
def _rollbacks_leave_nothing(history: History) -> Iterator[str]:
    undone = history.ids("rolled_back")
    for row in history.rows:
        if row["id"] in undone:
            yield f"I14: {_named(row)} is on record, but its transaction was rolled back"
    for id in undone & history.ids("began"):
        yield f"I14: {id} ran, but its transaction was rolled back"


# ---- shared ----------------------------------------------------------------------------------------
def _moves_by_job(history: History) -> dict[str, list[Entry]]:
    by_job: defaultdict[str, list[Entry]] = defaultdict(list)
    for move in history.moves:
        by_job[move["id"]].append(move)
    return dict(by_job)


def _result_of(row: Entry) -> Any:
    text = row.get("result")
    return None if text is None else json.loads(text)


def _named(row: Entry) -> str:
    return f"{row['id']} ({row.get('task', '?')})"


def counts(entries: Iterable[Entry], name: str) -> dict[str, int]:
    """How often each value of a field occurs, for reports.

    >>> counts([{"state": "dead"}, {"state": "dead"}], "state")
    {'dead': 2}
    """
    return dict(Counter(entry[name] for entry in entries))
