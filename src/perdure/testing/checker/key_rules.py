"""Rules about limits, keys and rollbacks: I10 limits hold, I12 keys are unique, I14 rollbacks leave nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from .history import History, name_of


# ---- I10: limits hold ----------------------------------------------------------------------------
def find_broken_limits(history: History) -> Iterator[str]:
    """At most so many at once, among the attempts whose success was accepted: those were held from their begin to their end,
    and no other attempt says for sure how long its hold stood."""
    accepted = {(row["id"], row["attempt"]) for row in history.rows if row["state"] == "succeeded"}
    ended = {(event["id"], event.get("attempt")): event["at"] for event in history.of_kind("ended") if "at" in event}
    steps: defaultdict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for event in history.of_kind("began"):
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


# ---- I12: keys are unique ------------------------------------------------------------------------
def find_double_keys(history: History) -> Iterator[str]:
    owners: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    fresh: Counter[tuple[str, str]] = Counter()
    for event in history.of_kind("acknowledged"):
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
        held_key = move.get("key")
        if held_key is not None and move["holds_key"] and holder.setdefault(held_key, move["id"]) != move["id"]:
            yield f"I12: key {held_key!r} was held by {holder[held_key]} and {move['id']} at once"
        if held_key is not None and not move["holds_key"] and holder.get(held_key) == move["id"]:
            del holder[held_key]


# ---- I14: rollbacks leave nothing ----------------------------------------------------------------
def find_rolled_back_jobs(history: History) -> Iterator[str]:
    undone = history.ids("rolled_back")
    for row in history.rows:
        if row["id"] in undone:
            yield f"I14: {name_of(row)} is on record, but its transaction was rolled back"
    for id in undone & history.ids("began"):
        yield f"I14: {id} ran, but its transaction was rolled back"
