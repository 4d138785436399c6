"""Finds blocked jobs whose edges are lost, or whose parents are not marked as followed.

Two queries find them among the blocked jobs of a page. What they find is locked, checked again and repaired: the edges are
made from `after`, and the job is put on the list (`unresolved`), so that its parents are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from perdure.core.record import Record
from perdure.storage.rules.records import parents_of

from ..connection.server import Connection, pipeline
from ..queries import load
from ..reading.records import array
from ..writing.apply import Effects

NOT_ON_RECORD = "ffffffff-ffff-ffff-ffff-ffffffffffff"  # stands for a parent whose name is no id: there is no such job


class LostEdges:
    """The statements of one schema."""

    def __init__(self, schema: str) -> None:
        self._sql = load("lost_edges", schema)

    async def mend(self, connection: Connection, blocked: Sequence[Record], effects: Effects) -> int:
        """Put right the edges of those of these jobs that need it; gives how many did."""
        if not blocked:
            return 0
        ids = {"ids": array(sorted(record.id for record in blocked))}
        if not any(await self._find(connection, ids)):
            return 0
        async with connection.transaction():
            await connection.execute(self._sql["lock"], ids)
            lost, unaware = await self._find(connection, ids)
            idle = {record.id for record in blocked if record.id in lost and record.after is None}
            await self._make(connection, [record for record in blocked if record.id in lost])
            await connection.execute(self._sql["note"], {"ids": array(sorted(lost - idle | unaware))})
            await connection.execute(self._sql["note_unranked"], {"ids": array(sorted(idle))})
        effects.resolves = effects.ranks = True
        return len(lost | unaware)

    async def _find(self, connection: Connection, ids: dict[str, str]) -> tuple[set[str], set[str]]:
        """The jobs that have lost edges, and those with parents that are to be looked at."""
        lost, unaware = await pipeline(connection, [(self._sql["lost"], ids), (self._sql["unaware"], ids)])
        return {id for (id,) in await lost.fetchall()}, {id for (id,) in await unaware.fetchall()}

    async def _make(self, connection: Connection, lost: Sequence[Record]) -> None:
        made = [(parent, record) for record in lost for parent in dict.fromkeys(_ids(parents_of(record.after)))]
        if not made:
            return
        values = {
            "parents": array(parent for parent, _ in made),
            "children": array(record.id for _, record in made),
            "finished": [record.run_when == "finished" for _, record in made],
        }
        await connection.execute(self._sql["make"], values)
        await connection.execute(self._sql["count"], {"ids": array(sorted({record.id for _, record in made}))})


def _ids(parents: Iterable[str]) -> Iterable[str]:
    for parent in parents:
        try:
            yield str(UUID(parent))
        except ValueError:
            yield NOT_ON_RECORD
