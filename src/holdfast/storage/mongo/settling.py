"""When edges are looked at and shares given: at once, or afterwards.

Together with what brought it about is the rule: one transaction, nobody sees anything half done. But it writes to the jobs
that are waited for, to those that wait, and to the accounts of fair queues; who keeps one of them for long, as a handler's
transaction does, would stop everybody else, and many who meet at one child would stop each other. So a transaction that has
met others a few times, and each that may last, leaves word on a list instead, and settles right after its
commit. Whatever becomes of that, the list is on record, and upkeep's `settle` finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from itertools import chain, repeat

from . import shares
from .edges import Followed, follow, leave
from .notes import first, take_off
from .steps import Steps, find


class Way(Enum):
    """How a transaction deals with edges and shares."""

    TOGETHER = "together"
    AFTERWARDS = "afterwards"  # parents are looked for, not touched
    ELSEWHERE = "elsewhere"  # a caller's transaction: parents are not even looked for


TRIES_TOGETHER = 3


def ways() -> Iterator[Way]:
    """How each try of a transaction deals with them."""
    return chain(repeat(Way.TOGETHER, TRIES_TOGETHER), repeat(Way.AFTERWARDS))


def settled(parents: Sequence[str], way: Way, limit: int, now: int, written: Collection[str] = ()) -> Steps[Followed]:
    """Look at the edges of these jobs now, or put them on the list; `left` are the entries then."""
    if not parents:
        return Followed(0, [], set(), False)
    if way is Way.TOGETHER:
        followed = yield from follow(parents, limit, now, written)
    else:
        followed = Followed(0, list(dict.fromkeys(parents)), set(), False)
    return followed._replace(left=(yield from leave(followed.left)))


def settle(limit: int, now: int, only: Sequence[str] | None = None) -> Steps[Followed]:
    """Look at what is on the list, or at `only` these entries of it."""
    if limit <= 0:
        return Followed(0, [], set(), False)
    if only is None:
        entries = yield from first("unsettled", limit)
    else:
        entries = yield from find("notes", {"_id": {"$in": list(only[:limit])}}, sort={"_id": 1})
    waiting = list(dict.fromkeys(entry["job"] for entry in entries if entry.get("share")))
    released = (yield from shares.give(waiting, now)) if waiting else []
    parents = dict.fromkeys(entry["job"] for entry in entries if not entry.get("share"))
    followed = yield from follow(parents, limit - len(waiting), now)
    left = set(followed.left)
    yield from take_off(entry["_id"] for entry in entries if entry.get("share") or entry["job"] not in left)
    yield from leave(id for id in followed.left if id not in parents)
    return followed._replace(
        looked=followed.looked + len(waiting), ready=followed.ready | {row.queue for row in released}
    )
