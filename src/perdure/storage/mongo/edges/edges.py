"""Edges between jobs, and what happens to followers when a parent has ended.

An edge is a document; an open one blocks its child. Edges are resolved in the transaction that causes it, or through a list
in `notes`. One rule keeps children from waiting for ever: **a transaction that reads the edges of a job writes to the
job**. A snapshot sees neither an edge that is being inserted nor an end that is being written; but both transactions write
the job, so they conflict and one comes after the other. An enqueue therefore writes to the parents that it reads, and so
does `resolve_edges`. A caller's transaction writes to no other job: it puts the parents on the list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from typing import Literal, NamedTuple

from bson import ObjectId

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import Cancelled, decide
from perdure.core.record import NewJob, Record
from perdure.storage.contract import PARENT_CANCELLED
from perdure.storage.rules.records import EdgeDecision, decide_edge, write_change, write_close

from ..connection.operations import Steps, aggregate, delete, find, update
from ..limits.limit_wakeups import notify_limit_claimers
from ..reading.records import SLIM_CHILD, Document
from ..writing import updates
from ..writing.small_documents import add

AT_ONCE = 2_000  # edges in one step: what one transaction writes has to fit into a part of the server's cache
STEPS = 3  # of a prune
_CLOSED: Document = {"$unset": {"open": ""}}


class Followed(NamedTuple):
    """The result of resolving edges."""

    looked: int
    left: list[str]  # what is still to be looked at
    ready: set[str]  # queues of released jobs
    changed: bool  # some job was cancelled


def leave(jobs: Iterable[str], what: Literal["edges", "share", "make", "loose"] = "edges") -> Steps[list[str]]:
    """Put jobs on the list for `resolve_edges`: to resolve their edges, give them their share of a fair queue, make the
    edges that lead to them, or close those. Returns the ids of the entries."""
    return (yield from add("unresolved", [{"job": id, "what": what} for id in jobs]))


def follow(parents: Iterable[str], limit: int, now: int, written: Collection[str] = ()) -> Steps[Followed]:
    """Resolve the edges of these jobs in the order of their ids, then of those that end by it, about `limit` edges.
    `written`: jobs that this transaction has written to already."""
    waiting, later = sorted(set(parents)), set[str]()
    looked, ready, changed = 0, set[str](), False
    while waiting and looked < limit:
        look = yield from _load(waiting[: limit - looked], limit - looked, written, now)
        look.go(now)
        yield from look.write()
        looked += look.looked
        waiting = [id for id in waiting if id not in look.resolved]
        later |= look.following - set(waiting)
        if not waiting:
            waiting, later = sorted(later), set()
        ready |= {child.queue for child in look.moved() if child.state in (State.READY, State.SCHEDULED)}
        changed |= any(child.state in FINAL for child in look.moved())
    return Followed(looked, [*waiting, *sorted(later)], ready, changed)


# ---- one look --------------------------------------------------------------------------------------
class _Look:
    """Some jobs, their edges that must be closed or redirected, and their children, in memory; the rules decide what
    becomes of them. A job that changes in this step is left for the next one."""

    def __init__(self, batch: Sequence[str], room: int) -> None:
        self.batch = batch
        self.room = room
        self.looked = 0
        self.resolved: set[str] = set()
        self.following: set[str] = set()
        self.parents: dict[str, Record] = {}
        self.edges: list[Document] = []
        self.there: set[str] = set()  # edges to which others may lead
        self._children: dict[str, Record] = {}
        self._before: dict[str, Record] = {}
        self._closed: list[str] = []
        self._loosed: dict[str, None] = {}  # children that wait for nobody any more
        self._led: list[Document] = []

    def meet(self, children: dict[str, Record]) -> None:
        self._children = children
        self._before = {id: copy(child) for id, child in children.items()}

    def moved(self) -> list[Record]:
        return [child for id, child in self._children.items() if child != self._before[id]]

    def go(self, now: int) -> None:
        by_parent: dict[str, list[Document]] = {id: [] for id in self.batch}
        for edge in self.edges:
            by_parent[edge["parent"]].append(edge)
        for id in self.batch:
            if id in self.following:
                return
            self.looked += 1
            for edge in by_parent[id]:
                if edge["child"] in self._loosed:
                    continue
                if self.looked > self.room:
                    return
                self.looked += 1
                self._follow(self.parents.get(id), edge, now)
            self.resolved.add(id)

    def _follow(self, parent: Record | None, edge: Document, now: int) -> None:
        child = self._children.get(edge["child"])
        what = decide_edge(parent, edge["run_when"])
        if child is None or child.state is not State.BLOCKED:
            self._loosed[edge["child"]] = None
        elif what is EdgeDecision.LEAD_ON and (led := redirected_edge(edge, parent))["_id"] not in self.there:
            self._close(edge)
            self._led.append(led)
            self.there.add(led["_id"])
            self.following.add(led["parent"])
        elif what in (EdgeDecision.CLOSE, EdgeDecision.LEAD_ON):
            self._close(edge)
            write_close(child, now)
        else:
            self._loosed[child.id] = None
            child.waits = 0
            write_change(child, decide(child, Cancelled(PARENT_CANCELLED)), now)
            if child.followed:
                self.following.add(child.id)

    def _close(self, edge: Document) -> None:
        self._closed.append(edge["_id"])
        self.there.discard(edge["_id"])

    def write(self) -> Steps[None]:
        statements: list[Document] = []
        if self._closed:
            statements.append({"q": {"_id": {"$in": self._closed}}, "u": _CLOSED, "multi": True})
        statements += _put(self._led)
        yield from update("edges", statements)
        if self._loosed:  # last: what was led on may be among them
            yield from leave((yield from loosen(list(self._loosed))), "loose")
        moved = self.moved()
        yield from updates.write(self._before, moved)
        yield from notify_limit_claimers((self._before[child.id], child) for child in moved)


def _load(batch: Sequence[str], room: int, written: Collection[str], now: int) -> Steps[_Look]:
    """As many of these jobs as fit, with their edges; at least the first."""
    parents = yield from updates.read_rows(batch, now=now)
    edges = yield from _find_moving(batch, parents, room + 1)
    while len(batch) > 1 and len(batch) + len(edges) > room:
        batch = batch[: len(batch) // 2]
        edges = yield from _find_moving(batch, parents, room + 1)
    look = _Look(batch, room)
    look.parents, look.edges = parents, edges
    yield from _touch(_find_untouched(batch, parents, written))
    look.meet((yield from updates.read_rows({edge["child"] for edge in edges}, SLIM_CHILD, now=now)))
    led = [
        redirected_edge(edge, parent)["_id"]
        for edge in edges
        if (parent := parents.get(edge["parent"])) and parent.next_id
    ]
    if led:
        there = yield from find("edges", {"_id": {"$in": led}, "open": True}, {"_id": 1})
        look.there = {edge["_id"] for edge in there}
    return look


def _find_moving(batch: Sequence[str], parents: dict[str, Record], limit: int) -> Steps[list[Document]]:
    """The open edges that do not stay as they are."""
    wanted: list[Document] = []
    let_all_go = {id for id in batch if decide_edge(parents.get(id), "succeeded") is not EdgeDecision.STAY}
    if let_all_go:
        wanted.append({"parent": {"$in": sorted(let_all_go)}, "open": True})
    let_some_go = {id for id in batch if decide_edge(parents.get(id), "finished") is not EdgeDecision.STAY} - let_all_go
    if let_some_go:
        wanted.append({"parent": {"$in": sorted(let_some_go)}, "open": True, "run_when": "finished"})
    if not wanted:
        return []
    return (yield from find("edges", {"$or": wanted}, sort={"parent": 1, "child": 1}, limit=limit))


def _find_untouched(batch: Sequence[str], parents: dict[str, Record], written: Collection[str]) -> list[str]:
    return [id for id in batch if id in parents and not (id in written and parents[id].followed)]


def _touch(ids: Sequence[str]) -> Steps[None]:
    """Mark jobs as followed, by a real write in any case."""
    if ids:
        touched: Document = {"$set": {"followed": True, "touched": ObjectId()}}
        yield from update("jobs", [{"q": {"_id": {"$in": list(ids)}}, "u": touched, "multi": True}])


def redirected_edge(edge: Document, parent: Record | None) -> Document:
    """The edge from the job that continues the parent's chain."""
    to = "" if parent is None or parent.next_id is None else parent.next_id
    return _edge(to, edge["child"], edge["run_when"])


def _edge(parent: str, child: str, run_when: str) -> Document:
    return {"_id": f"{parent} {child}", "parent": parent, "child": child, "run_when": run_when, "open": True}


def _put(edges: Iterable[Document]) -> list[Document]:
    """Open edges replace existing ones; closed ones are inserted only where there is none."""
    return [
        {"q": {"_id": edge["_id"]}, "u": edge if "open" in edge else {"$setOnInsert": edge}, "upsert": True}
        for edge in edges
    ]


def loosen(children: Sequence[str]) -> Steps[list[str]]:
    """Close the edges that lead to these jobs; returns those that may have more."""
    wanted: Document = {"child": {"$in": list(children)}, "open": True}
    found = yield from find("edges", wanted, {"child": 1}, limit=AT_ONCE)
    if found:
        closed = [edge["_id"] for edge in found]
        yield from update("edges", [{"q": {"_id": {"$in": closed}}, "u": _CLOSED, "multi": True}])
    return list(children) if len(found) == AT_ONCE else []


# ---- reading, carrying -----------------------------------------------------------------------------
def find_followers(ids: Sequence[str]) -> Steps[list[list[str]]]:
    """The jobs that wait for each of these jobs."""
    children = yield from _ends("parent", "child", ids)
    return [children.get(id, []) for id in ids]


def find_parents(ids: Sequence[str]) -> Steps[dict[str, list[str]]]:
    """The jobs that each of these jobs still waits for."""
    return (yield from _ends("child", "parent", ids))


def find_kept_children(ids: Sequence[str]) -> Steps[dict[str, list[str]]]:
    """The jobs that waited for each of these jobs and have not ended."""
    closed = yield from find("edges", {"parent": {"$in": list(ids)}, "open": None}, sort={"child": 1})
    unfinished = yield from _find_unfinished(closed)
    children: dict[str, list[str]] = {}
    for edge in closed:
        if edge["child"] in unfinished:
            children.setdefault(edge["parent"], []).append(edge["child"])
    return children


def _ends(this: str, other: str, ids: Iterable[str]) -> Steps[dict[str, list[str]]]:
    """For each job at this end of open edges, the jobs at the other end."""
    wanted: Document = {this: {"$in": list(set(ids))}, "open": True}
    ends: dict[str, list[str]] = {}
    for edge in (yield from find("edges", wanted, {"_id": 0, this: 1, other: 1}, sort={other: 1})):
        ends.setdefault(edge[this], []).append(edge[other])
    return ends


def edges_to_put(waiting: Iterable[tuple[Record | NewJob, Sequence[str]]]) -> list[Document]:
    """The edges by which jobs wait for these."""
    return [_edge(parent, job.id, job.run_when) for job, parents in waiting for parent in parents]


def to_keep(kept: Iterable[tuple[str, Sequence[str]]]) -> list[Document]:
    """The closed edges from jobs to those that waited for them."""
    return [
        {"_id": f"{parent} {child}", "parent": parent, "child": child, "run_when": ""}
        for parent, children in kept
        for child in children
    ]


def put(edges: Sequence[Document]) -> Steps[None]:
    """Store these edges; repeating it changes nothing."""
    yield from update("edges", _put(edges))


# ---- upkeep ----------------------------------------------------------------------------------------
def find_needed(ids: Sequence[str]) -> Steps[set[str]]:
    """Those of these ended jobs that a job without an end waits for, or waited for. Removes closed edges of ended jobs on
    the way; where there are very many, some jobs are kept until the next time."""
    waited = yield from aggregate(
        "edges", [{"$match": {"parent": {"$in": list(ids)}, "open": True}}, {"$group": {"_id": "$parent"}}]
    )
    kept = {group["_id"] for group in waited}
    unsure = [id for id in ids if id not in kept]
    for _ in range(STEPS):
        closed = yield from find("edges", {"parent": {"$in": unsure}}, sort={"parent": 1}, limit=AT_ONCE)
        if not closed:
            return kept
        kept |= yield from _find_parents_of_unfinished(closed)
        if len(closed) < AT_ONCE:
            return kept
        unsure = [id for id in unsure if id not in kept and id >= closed[-1]["parent"]]
    return kept | set(unsure)


def _find_parents_of_unfinished(closed: Sequence[Document]) -> Steps[set[str]]:
    unfinished = yield from _find_unfinished(closed)
    over = [edge["_id"] for edge in closed if edge["child"] not in unfinished]
    if over:
        yield from delete("edges", {"_id": {"$in": over}})
    return {edge["parent"] for edge in closed if edge["child"] in unfinished}


def _find_unfinished(edges: Sequence[Document]) -> Steps[set[str]]:
    """The children of these edges that have not ended."""
    if not edges:
        return set()
    children = list({edge["child"] for edge in edges})
    ended = [state.value for state in FINAL]
    found = yield from find("jobs", {"_id": {"$in": children}, "state": {"$nin": ended}}, {"_id": 1})
    return {document["_id"] for document in found}


def forget(ids: Sequence[str]) -> Steps[list[str]]:
    """Remove the edges that lead to these jobs; returns the jobs without any left."""
    found = yield from find("edges", {"child": {"$in": list(ids)}}, {"child": 1}, sort={"child": 1}, limit=AT_ONCE)
    if found:
        yield from delete("edges", {"_id": {"$in": [edge["_id"] for edge in found]}})
    return [id for id in ids if len(found) < AT_ONCE or id < found[-1]["child"]]
