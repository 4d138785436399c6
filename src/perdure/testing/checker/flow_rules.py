"""Rules about effects and flows: I7 transactional effects happen once, I8 followers run after their parents."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from .history import FINAL, Entry, History, moves_by_job, name_of

OVER = ("ended", "died", "cancelled")  # events after which followers of a job may run


# ---- I7: transactional effects happen once -------------------------------------------------------
def find_repeated_effects(history: History) -> Iterator[str]:
    rows = {row["id"]: row for row in history.rows}
    written: defaultdict[str, list[int]] = defaultdict(list)
    for effect in history.effects:
        written[effect["job"]].append(effect["attempt"])
    for id, attempts in written.items():
        row = rows.get(id)
        if len(attempts) > 1:
            yield f"I7: the transactional effect of {id} happened {len(attempts)} times, in attempts {attempts}"
        if row is not None and (row["state"] != "succeeded" or row["attempt"] not in attempts):
            yield f"I7: attempt {attempts} of {name_of(row)} left its effect, and the job is {row['state']}"
    for event in history.of_kind("ended"):
        row = rows.get(event["id"])
        if (
            event.get("transactional")
            and row is not None
            and row["state"] == "succeeded"
            and event["id"] not in written
        ):
            yield f"I7: {name_of(row)} succeeded without its transactional effect"


# ---- I8: followers run after their parents -------------------------------------------------------
def find_early_followers(history: History) -> Iterator[str]:
    rows = {row["id"]: row for row in history.rows}
    first_begun, first_over = _first(history, ("began",)), _first(history, OVER)
    retried = history.ids("retried")
    for row in history.rows:
        parents = [_end_of_chain(rows, parent) for parent in _parents_of(row)]
        if row["state"] == "blocked" and history.drained and not any(_holds_back(row, each) for each in parents):
            yield f"I8: {name_of(row)} is stranded: nobody it waits for will end any more"
        began = first_begun.get(row["id"])
        for parent in parents:
            over = first_over.get(parent["id"]) if parent is not None else None
            if began is not None and parent is not None and (over is None or over > began):
                yield f"I8: {name_of(row)} began before {name_of(parent)} was over"
            again = parent is not None and parent["id"] in retried and row.get("run_when") == "finished"
            if parent is not None and not again and _overlap(row, parent):
                yield f"I8: {name_of(row)} ran before {name_of(parent)} had ended by the store's clock"
    yield from _find_wrong_releases(history, rows)


def _find_wrong_releases(history: History, rows: Mapping[str, Entry]) -> Iterator[str]:
    by_job = moves_by_job(history)
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
                yield f"I8: {name_of(row)} was released before {name_of(parent)} had ended"


def _first(history: History, kinds: Iterable[str]) -> dict[str, int]:
    """The position of each job's first event of these kinds in the history."""
    positions: dict[str, int] = {}
    for position, event in enumerate(history.events):
        if event["event"] in kinds and event.get("id") is not None:
            positions.setdefault(event["id"], position)
    return positions


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
