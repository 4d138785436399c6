"""Reads jobs by id and by filter, counts, logs, queues and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import msgspec

from perdure.core.job import ANY, FINAL
from perdure.core.record import Record
from perdure.storage.contract import Filter, QueueCapacity, QueueRow, QueueSettings, WorkerRow
from perdure.storage.rules.filters import Position, cursor_of, spellings

from ..connection.server import Connection, pipeline
from ..queries import load
from .records import array, marked, shown_of, unmarked

FEW = 10_000
CLAIMS_END_WITHIN = 5.0  # seconds

_FITS = {
    "task": "j.task = %(task)s::text",
    "queue": "j.queue = %(queue)s::text",
    "key": "j.key = %(key)s::text",
    "since": "j.created_at >= %(since)s::bigint",
    "before": "j.created_at < %(before)s::bigint",
    # no tag of ours holds a NUL, and PostgreSQL's JSON cannot decode one
    "tag": "%(tag)s::text IN (SELECT {schema}.strings_in(j.tags))",
    "tenant": "(j.tenant = %(tenant)s::text OR starts_with(j.tenant, %(tenant)s::text || '/'))",
    "chain_id": "(j.chain_id = %(chain_id)s::uuid OR (j.chain_id IS NULL AND j.id = %(chain_id)s::uuid))",
}
_MENTIONS = (
    "EXISTS (SELECT 1 FROM unnest(ARRAY[j.payload, j.key, {reason}, j.errors]) AS place (words),"
    " unnest(%(texts)s::text[]) AS searched (words)"
    ' WHERE strpos(lower(place.words COLLATE "C"), lower(searched.words COLLATE "C")) > 0)'
)


class Listing:
    """The statements of one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._sql = load("listing", schema)

    async def get(self, connection: Connection, ids: Sequence[str], now: int | None) -> list[Record | None]:
        cursor = await connection.execute(self._sql["get"], {"ids": array(ids)})
        found = {record.id: record for record in shown_of(await cursor.fetchall(), now)}
        return [found.get(id) for id in ids]

    async def find(
        self, connection: Connection, filter: Filter, limit: int, after: Position | None, now: int | None
    ) -> tuple[list[Record], str | None]:
        """A page, newest first."""
        conditions, values = await self._conditions(connection, filter)
        if after is not None:
            conditions.append("j.created_at <= %(after_at)s::bigint")
            conditions.append("(j.created_at, j.id) < (%(after_at)s::bigint, %(after_id)s::uuid)")
            values |= {"after_at": after[0], "after_id": after[1]}
        statement = self._sql["find"].replace("{fitting}", _all(conditions))
        cursor = await connection.execute(statement, {**values, "limit": limit + 1})
        found = shown_of(await cursor.fetchall(), now)
        shown = found[:limit]
        more = len(found) > limit and shown
        return shown, cursor_of(shown[-1]) if more else None

    async def count(self, connection: Connection, filter: Filter) -> int:
        if filter.states is not None and filter == Filter(states=filter.states):
            cursor = await connection.execute(self._sql["count_states"], {"states": _names(filter.states)})
        else:
            conditions, values = await self._conditions(connection, filter)
            cursor = await connection.execute(self._sql["count"].replace("{fitting}", _all(conditions)), values)
        return int((await cursor.fetchall())[0][0])

    async def _conditions(self, connection: Connection, filter: Filter) -> tuple[list[str], dict[str, Any]]:
        conditions: list[str] = []
        values: dict[str, Any] = {}
        if filter.states is not None:
            conditions.append(await self._states(connection, filter.states))
            values["states"] = _names(filter.states)
        if filter.routing is not ANY:
            conditions.append("j.routing_key IS NOT DISTINCT FROM %(routing)s::text")
            values["routing"] = filter.routing
        for name, condition in _FITS.items():
            value = getattr(filter, name)
            if value is not None:
                conditions.append(condition.replace("{schema}", f'"{self._schema}"'))
                values[name] = marked(value) if isinstance(value, str) else value
        if filter.text is not None:
            conditions.append(_MENTIONS.replace("{reason}", _REASON))
            values["texts"] = [marked(text) for text in spellings(filter.text)]
        return conditions, values

    async def _states(self, connection: Connection, states: Sequence[str]) -> str:
        """How to find jobs in these states: along the dead letters, through the few that have not ended, or through all."""
        names = _names(states)
        if names == ["dead"]:
            return "o.state = 'dead'"
        if FINAL.issuperset(states):
            return "o.state = ANY(%(states)s::text[])"
        if not FINAL.intersection(states):
            cursor = await connection.execute(self._sql["few_live"], {"states": names, "few": FEW})
            if (await cursor.fetchall())[0][0]:
                return f"j.id = ANY(ARRAY({_LIVE.replace('{schema}', self._schema)})) AND o.id IS NULL"
        return "coalesce(o.state, CASE WHEN h.id IS NULL THEN w.state ELSE 'running' END) = ANY(%(states)s::text[])"

    # -- the rest ------------------------------------------------------------------------------------
    async def log(self, connection: Connection, id: str) -> list[str]:
        rows = await (await connection.execute(self._sql["log"], {"id": id})).fetchall()
        return [unmarked(line) or "" for (line,) in rows]

    async def queues(self, connection: Connection, now: int | None) -> list[QueueRow]:
        rows = await (await connection.execute(self._sql["queues"], {"now": now})).fetchall()
        return [QueueRow(QueueSettings(*row[:7]), row[7], row[8]) for row in rows]

    async def rooms(self, connection: Connection) -> dict[str, QueueCapacity]:
        rows = await (await connection.execute(self._sql["rooms"])).fetchall()
        return {name: QueueCapacity(QueueSettings(name, False, *bound), left) for name, *bound, left in rows}

    async def configure(self, connection: Connection, settings: QueueSettings) -> None:
        await connection.execute(self._sql["configure"], msgspec.structs.asdict(settings))

    async def pause(self, connection: Connection, queue: str, paused: bool) -> None:
        name = {"name": queue}
        steps = ["turn", "pause_gates"] if paused else ["resume_jobs", "turn", "resume_gates"]
        await pipeline(
            connection,
            [(self._sql["pause"], {**name, "paused": paused}), *((self._sql[step], name) for step in steps)],
        )
        if paused:
            await self._claims_end(connection)

    async def _claims_end(self, connection: Connection) -> None:
        """Claims that began before the pause was committed do not see it: wait for those under way."""
        until = monotonic() + CLAIMS_END_WITHIN
        under_way = await self._claims_under_way(connection)
        while under_way and monotonic() < until:
            await asyncio.sleep(0.002)
            under_way &= await self._claims_under_way(connection)

    async def _claims_under_way(self, connection: Connection) -> set[str]:
        return {name for (name,) in await (await connection.execute(self._sql["claims_under_way"])).fetchall()}

    async def beat(self, connection: Connection, worker: WorkerRow, now: int | None) -> None:
        await connection.execute(self._sql["beat"], {**msgspec.structs.asdict(worker), "now": now})

    async def leave(self, connection: Connection, worker: str) -> None:
        await connection.execute(self._sql["leave"], {"id": worker})

    async def workers(self, connection: Connection, seen_within: int, now: int | None) -> list[WorkerRow]:
        forget = (self._sql["forget_workers"], {"within": seen_within, "now": now})
        _, found = await pipeline(connection, [forget, (self._sql["workers"], {})])
        return [WorkerRow(*row) for row in await found.fetchall()]

    async def now(self, connection: Connection) -> int:
        return int((await (await connection.execute(self._sql["now"], {"now": None})).fetchall())[0][0])


_REASON = "CASE WHEN o.id IS NOT NULL THEN o.reason WHEN h.id IS NOT NULL THEN h.reason ELSE w.reason END"
_LIVE = (
    'SELECT id FROM "{schema}".waiting WHERE state = ANY(%(states)s::text[])'
    " UNION ALL SELECT id FROM \"{schema}\".holds WHERE 'running' = ANY(%(states)s::text[])"
)


def _names(states: Sequence[str]) -> list[str]:
    return sorted({str(state) for state in states})


def _all(conditions: Sequence[str]) -> str:
    return " AND ".join(conditions) or "true"
