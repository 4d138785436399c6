"""Finds jobs whose lease lapsed, that expired, or that were kept long enough."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from psycopg.errors import InsufficientPrivilege

from perdure.core.record import Record
from perdure.core.retention import HIDDEN_FOR

from ..connection.server import Connection, pipeline
from ..limits.limits import Limits
from ..queries import load
from ..reading.records import array, records_of
from ..writing.fair_ranks import Shares

SMALL = 20_000
DAY = 86_400_000_000
PARTITIONS_EVERY = 3600.0
DAYS_AHEAD = 2
MEND_EVERY = 10.0
_GOING = ("outcomes", "jobs", "logs", "edges", "edges_to", "texts", "unreadable")  # what is removed of a job


class Upkeep:
    """The statements of one schema."""

    def __init__(self, schema: str, limits: Limits) -> None:
        self._limits = limits
        self._shares = Shares(schema)
        self._sql = load("upkeep", schema)
        self._too_many_of = {
            among: load("upkeep", schema, among=self._sql[among])["too_many"]
            for among in ("among_all", "among_counted")
        }
        self._next_long_kept = 0
        self._partitions_at = 0.0
        self._mend_at = 0.0

    async def lapsed(self, connection: Connection, limit: int, contact: int, now: int | None) -> list[Record]:
        """Jobs whose lease is over; leases that reach too far are cut."""
        values = {"now": now, "longest": 3 * contact, "limit": limit}
        cursor = await connection.execute(self._sql["lapsed"], values)
        return records_of(await cursor.fetchall())

    async def next_lapse(self, connection: Connection, now: int | None) -> int | None:
        """How long it takes until a lease is over."""
        cursor = await connection.execute(self._sql["next_lapse"], {"now": now})
        first: int | None = (await cursor.fetchall())[0][0]
        return first

    async def expired(self, connection: Connection, limit: int, now: int | None) -> list[Record]:
        cursor = await connection.execute(self._sql["expired"], {"now": now, "limit": limit})
        return records_of(await cursor.fetchall())

    async def prune(self, connection: Connection, limit: int, now: int | None) -> int:
        """Hide or remove what is no longer kept; gives the number of jobs."""
        dropped = await self._keep_partitions(connection, now)
        await connection.execute(self._sql["remove_keys"], {"now": now})
        await self._mend(connection, now)
        gone = await self._ids(connection, self._sql["brief"], limit, now)
        gone += await self._long_kept(connection, limit - len(gone), now)
        if len(gone) < limit:
            gone += await self._too_many(connection, limit)
        return dropped + await self._take_away(connection, list(dict.fromkeys(gone))[:limit], now)

    async def _keep_partitions(self, connection: Connection, now: int | None) -> int:
        """Once an hour, see to the pieces of the history; gives how many jobs were dropped. A role that may not is left
        alone: then rows are removed one by one."""
        if monotonic() < self._partitions_at:
            return 0
        self._partitions_at = monotonic() + PARTITIONS_EVERY
        dropped = 0
        try:
            for ahead in range(DAYS_AHEAD + 1):
                await connection.execute(self._sql["make_partition"], {"ahead": ahead})
            while (gone := await self._drop_partition(connection, now)) is not None:
                dropped += gone
            if dropped:
                await connection.execute(self._sql["forget_unreadable"])
        except InsufficientPrivilege:
            pass
        return dropped

    async def _drop_partition(self, connection: Connection, now: int | None) -> int | None:
        cursor = await connection.execute(self._sql["drop_partition"], {"now": now, "hidden_for": HIDDEN_FOR})
        gone: int | None = (await cursor.fetchall())[0][0]
        return gone

    async def _long_kept(self, connection: Connection, limit: int, now: int | None) -> list[str]:
        """Those that were to be kept for a day or more are left to the pieces that are dropped as a whole; one that is a day
        overdue is in a piece that cannot be. It is looked for only when there can be one: not by what ends from now on.
        Pieces come of age by the server's clock: by any other, nobody waits for them."""
        leeway = DAY if now is None else 0
        cursor = await connection.execute(self._sql["now"], {"now": now})
        at: int = (await cursor.fetchall())[0][0]
        if at < self._next_long_kept or limit <= 0:
            return []
        found = await self._ids(connection, self._sql["long_kept"], limit, now, leeway=leeway)
        if len(found) < limit:
            cursor = await connection.execute(self._sql["next_long_kept"], {"now": now})
            earliest, at = (await cursor.fetchall())[0]
            self._next_long_kept = at + DAY if earliest is None else min(max(earliest + leeway, at), at + DAY)
        return found

    async def _too_many(self, connection: Connection, limit: int) -> list[str]:
        """A long history is not looked through for this: then only counted jobs take places, and a few more may stay."""
        tasks = [task for (task,) in await (await connection.execute(self._sql["counted_tasks"])).fetchall()]
        if not tasks:
            return []
        cursor = await connection.execute(self._sql["is_small"], {"small": SMALL})
        small = (await cursor.fetchall())[0][0]
        values = {"tasks": tasks, "limit": limit}
        cursor = await connection.execute(self._too_many_of["among_all" if small else "among_counted"], values)
        return [id for (id,) in await cursor.fetchall()]

    async def _take_away(self, connection: Connection, ids: Sequence[str], now: int | None) -> int:
        if not ids:
            return 0
        async with connection.transaction():
            cursor = await connection.execute(self._sql["lock_ended"], {"ids": array(sorted(ids))})
            locked = {"ids": array(id for (id,) in await cursor.fetchall()), "now": now, "hidden_for": HIDDEN_FOR}
            over = await (await connection.execute(self._sql["still_over"], locked)).fetchall()
            hidden, gone = ([id for id, too_new in over if too_new is wanted] for wanted in (True, False))
            statements = [(self._sql["hide"], {"ids": array(hidden), "hidden_for": HIDDEN_FOR})] if hidden else []
            if gone:
                statements += [(self._sql[f"remove_{what}"], {"ids": array(gone)}) for what in _GOING]
            if statements:
                await pipeline(connection, statements)
        return len(over)

    async def _mend(self, connection: Connection, now: int | None) -> None:
        """Once in a while: accounts that say nothing more, and word about limits that was lost."""
        if monotonic() < self._mend_at:
            return
        self._mend_at = monotonic() + MEND_EVERY
        await connection.execute(*self._shares.forget())
        async with connection.transaction():
            await self._limits.mend(connection, now)

    async def _ids(
        self, connection: Connection, statement: str, limit: int, now: int | None, **values: int
    ) -> list[str]:
        cursor = await connection.execute(statement, {"now": now, "limit": limit, **values})
        return [id for (id,) in await cursor.fetchall()]
