"""Resolves edges: releases or cancels jobs that wait for other jobs.

Edges to resolve are on a list (`unresolved`), written in the transaction that makes them: a line for a new child, so that
its parents are checked; a line for a followed job that ends, or that continues a chain, so that its children are. So nothing
is forgotten when the process dies in between, and an enqueue locks no parent. Whoever takes a line from the list checks the
parents under a lock, marks those that have not ended as followed, and releases the children of the others. A parent that
ends before it is marked is seen as ended; one that ends later puts itself on the list.

Rows are locked in the order that everybody uses (waiting, holds, outcomes, each by id). Only the session that holds the lock
of a child closes its edges, so the child's count falls once for each.

A job of a fair queue that was enqueued in a caller's transaction has no rank yet. It is on the same list, and gets its rank
in a transaction of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, decide
from perdure.core.record import NewJob
from perdure.storage.contract import PARENT_CANCELLED
from perdure.storage.rules.records import EdgeDecision, decide_edge

from ..connection.server import Connection, Statement, pipeline
from ..queries import load
from ..reading.records import LOOKS, Flawed, array, numbers, unmarked
from ..writing.apply import Apply, Effects
from ..writing.enqueue import Enqueue
from ..writing.fair_ranks import Shares
from ..writing.state_rows import TABLES


class Line(NamedTuple):
    """What is to be looked at: the children of a parent, or the parents of a child, behind a mark."""

    number: int
    parent: str | None
    child: str | None
    mark: str


class Edge(NamedTuple):
    line: int
    parent: str
    child: str
    finished: bool


@dataclass(slots=True)
class ParentState:
    """The state of a parent: the table of its state row, and what an edge asks about it."""

    table: str
    followed: bool | None
    state: State
    next_id: str | None
    hidden: bool = False


class ResolvedEdges(NamedTuple):
    """How many edges and lines were handled, and whether there are more."""

    edges: int
    more: bool


class Edges:
    """The statements of one schema."""

    def __init__(self, schema: str, enqueue: Enqueue, apply: Apply) -> None:
        self._enqueue = enqueue
        self._apply = apply
        self._shares = Shares(schema)
        self._sql = load("edges", schema)
        self._take = {
            newest: load("edges", schema, direction="DESC" if newest else "ASC")["take"] for newest in (False, True)
        }
        self._mark = {table: load("edges", schema, table=table)["mark_followed"] for table in TABLES}

    async def followers(self, connection: Connection, ids: Sequence[str]) -> list[list[str]]:
        cursor = await connection.execute(self._sql["followers"], {"ids": array(dict.fromkeys(ids))})
        found: dict[str, list[str]] = {}
        for parent, child in await cursor.fetchall():
            found.setdefault(parent, []).append(child)
        return [found.get(id, []) for id in ids]

    async def has_unresolved(self, connection: Connection) -> bool:
        return bool((await (await connection.execute(self._sql["left"])).fetchall())[0][0])

    # -- edges ---------------------------------------------------------------------------------------
    async def resolve(
        self, connection: Connection, limit: int, effects: Effects, now: int | None, *, newest: bool
    ) -> ResolvedEdges:
        """Resolve edges of the list, in a transaction of their own."""
        async with connection.transaction():
            cursor = await connection.execute(self._take[newest], {"limit": limit})
            lines = [Line(*row) for row in await cursor.fetchall()]
            if not lines:
                return ResolvedEdges(0, False)
            edges, rest = await self._read_edges(connection, lines, limit)
            more = await self._resolve_edges(connection, lines, edges, effects, now)
            done = lines if rest is None else lines[: lines.index(rest)]
            after: list[Statement] = [(self._sql["forget"], {"numbers": numbers(line.number for line in done)})]
            if rest is not None:
                last = edges[-1].child if rest.parent is not None else edges[-1].parent
                after.append((self._sql["go_on_behind"], {"number": rest.number, "mark": last}))
            await pipeline(connection, after)
        return ResolvedEdges(len(done) + len(edges), more or rest is not None or len(lines) == limit)

    async def _read_edges(
        self, connection: Connection, lines: Sequence[Line], limit: int
    ) -> tuple[list[Edge], Line | None]:
        """The edges that these lines speak of, at most so many, and the line that was not read to its end."""
        values = {
            "numbers": numbers(line.number for line in lines),
            "parents": array(line.parent or "NULL" for line in lines),
            "children": array(line.child or "NULL" for line in lines),
            "marks": array(line.mark for line in lines),
            "limit": limit + 1,
        }
        found = [Edge(*row) for row in await (await connection.execute(self._sql["edges"], values)).fetchall()]
        if len(found) <= limit:
            return found, None
        edges = found[:limit]
        return edges, next(line for line in lines if line.number == edges[-1].line)

    async def _resolve_edges(
        self, connection: Connection, lines: Sequence[Line], edges: Sequence[Edge], effects: Effects, now: int | None
    ) -> bool:
        """Do what follows for these edges; gives whether that made more to be looked at."""
        ids = {edge.parent for edge in edges} | {line.parent for line in lines if line.parent is not None}
        parents, blocked = await self._lock(connection, ids, {edge.child for edge in edges})
        await self._mark_followed(connection, parents)
        work = _Fates(edges, parents, blocked)
        closed = await self._close(connection, work)
        if closed:
            values = {"ids": array(closed), "closed": numbers(closed.values()), "now": now}
            cursor = await connection.execute(self._sql["let_go"], values)
            effects.ready |= {queue for (queue,) in await cursor.fetchall()}
        if work.over or work.cancelled:
            await connection.execute(self._sql["close_all"], {"ids": array(sorted(work.over | work.cancelled))})
        followed = await self._cancel(connection, work.cancelled, effects, now) if work.cancelled else False
        return followed or bool(work.led)

    async def _lock(
        self, connection: Connection, parents: set[str], children: set[str]
    ) -> tuple[dict[str, ParentState], set[str]]:
        """The parents as they stand, and the children that are blocked, all locked. A parent that moved meanwhile is looked
        for again."""
        both = array(sorted(parents | children))
        found: dict[str, ParentState] = {}
        blocked: set[str] = set()
        lost: list[str] = []
        for _ in range(LOOKS):
            ids = {"ids": array(sorted(parents))}
            asked: list[Statement] = [(self._sql[f"lock_{table}"], ids) for table in ("holds", "outcomes")]
            asked = [(self._sql["lock_waiting"], {"ids": both}), *asked, (self._sql["known"], ids)]
            waiting, holds, outcomes, known = [await each.fetchall() for each in await pipeline(connection, asked)]
            blocked |= {id for id, _, is_blocked in waiting if is_blocked}
            found |= {id: ParentState("waiting", marked, State.READY, None) for id, marked, _ in waiting}
            found |= {id: ParentState("holds", marked, State.RUNNING, None) for id, marked in holds}
            found |= {id: ParentState("outcomes", marked, State(state), *rest) for id, marked, state, *rest in outcomes}
            lost = [id for (id,) in known if id not in found]
            if not lost:
                return {id: found[id] for id in parents if id in found}, blocked
        raise Flawed(lost)

    async def _mark_followed(self, connection: Connection, parents: Mapping[str, ParentState]) -> None:
        for table in TABLES:
            fresh = sorted(id for id, each in parents.items() if each.table == table and not each.followed)
            if fresh:
                await connection.execute(self._mark[table], {"ids": array(fresh)})

    async def _close(self, connection: Connection, work: _Fates) -> Counter[str]:
        """Close edges and lead others on; gives how many fewer each child waits for."""
        pairs = [*work.closed, *work.led]
        if not pairs:
            return Counter()
        between = {"parents": array(parent for parent, _ in pairs), "children": array(child for _, child in pairs)}
        cursor = await connection.execute(self._sql["close"], between)
        gone = set(await cursor.fetchall())
        fewer = Counter(child for parent, child in work.closed if (parent, child) in gone)
        leading = {pair: led for pair, led in work.led.items() if pair in gone}
        if leading:
            onward = dict.fromkeys(leading.values())
            values: dict[str, Any] = {
                "parents": array(parent for parent, _, _ in onward),
                "children": array(child for _, child, _ in onward),
                "finished": [finished for _, _, finished in onward],
            }
            cursor = await connection.execute(self._sql["lead"], values)
            fresh = set(await cursor.fetchall())
            # that it waits for the next job of the chain already is enough
            fewer += Counter(child for _, child in leading) - Counter(child for _, child in fresh)
        return Counter({child: times for child, times in fewer.items() if child not in work.cancelled})

    async def _cancel(self, connection: Connection, ids: set[str], effects: Effects, now: int | None) -> bool:
        """Cancel children whose parent was cancelled, or is not on record; gives whether one of them is followed."""
        await connection.execute(self._sql["wait_for_nobody"], {"ids": array(sorted(ids))})
        children = await self._apply.look(connection, sorted(ids))
        changes = [decide(child, Cancelled(PARENT_CANCELLED)) for child in children.values()]
        await self._apply.apply(connection, changes, effects, now)
        return any(child.followed for child in children.values())

    # -- shares --------------------------------------------------------------------------------------
    async def rank(self, connection: Connection, limit: int, effects: Effects, now: int | None) -> int:
        """Give jobs of fair queues the shares that they have not yet, in a transaction of their own."""
        async with connection.transaction():
            rows = await (await connection.execute(self._sql["unranked"], {"limit": limit})).fetchall()
            if not rows:
                return 0
            ids = {"ids": array(sorted(child for _, child in rows))}
            waiting = await (await connection.execute(self._sql["to_place"], ids)).fetchall()
            places = {child: number for number, child in rows}
            jobs = [_new_job_of(*row) for row in sorted(waiting, key=lambda row: places[row[0]])]
            if jobs:
                weights = await self._enqueue.weights(connection, jobs)
                ranks, at = await self._shares.give(connection, jobs, weights, now)
                values = {"ids": array(job.id for job in jobs), "ranks": numbers(ranks), "now": at}
                cursor = await connection.execute(self._sql["place"], values)
                effects.ready |= {queue for (queue,) in await cursor.fetchall()}
            await connection.execute(self._sql["placed"], {"numbers": numbers(number for number, _ in rows)})
        return len(rows)


class _Fates:
    """What becomes of edges, and of the children that they lead to."""

    def __init__(self, edges: Sequence[Edge], parents: Mapping[str, ParentState], blocked: set[str]) -> None:
        self.closed: set[tuple[str, str]] = set()
        self.led: dict[tuple[str, str], tuple[str, str, bool]] = {}  # edge, the one that replaces it
        self.cancelled: set[str] = set()
        self.over: set[str] = set()  # children that are not blocked any more
        for edge in sorted(set(edges), key=lambda edge: (edge.parent, edge.child)):
            parent = parents.get(edge.parent)
            what = decide_edge(parent, "finished" if edge.finished else "succeeded")
            if what is EdgeDecision.STAY:
                continue
            if edge.child not in blocked:
                self.over.add(edge.child)
            elif edge.child in self.cancelled:
                continue  # it waits for nobody
            elif what is EdgeDecision.CANCEL:
                self.cancelled.add(edge.child)
            elif what is EdgeDecision.LEAD_ON and parent is not None and parent.next_id is not None:
                self.led[edge.parent, edge.child] = (parent.next_id, edge.child, edge.finished)
            else:
                self.closed.add((edge.parent, edge.child))


def _new_job_of(id: str, task: str, queue: str, priority: int, run_at: int, tenant: str | None) -> NewJob:
    return NewJob(
        id=id, task=task, queue=queue, priority=priority, at=run_at, tenant=unmarked(tenant), payload="", backoff="",
        retention="", dead_retention="",
    )  # fmt: skip
