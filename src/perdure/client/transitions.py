"""Changes jobs from outside: reads them, decides, applies, and repeats that for jobs that changed in between."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.job import FINAL
from ..core.lifecycle import Change, Deleted, Report, decide
from ..core.record import Record
from ..errors import IllegalMove
from ..storage.contract import Refusal, Storage

_TRIES = 50  # reads of a row that changes each time


async def transition(storage: Storage, ids: Sequence[str], said: Report) -> int:
    """Apply a report to jobs, and return how many it changed. Illegal moves and unknown jobs are passed over."""
    wanted = list(dict.fromkeys(ids))
    moved = 0
    for start in range(0, len(wanted), storage.chunk):
        moved += await _move_chunk(storage, wanted[start : start + storage.chunk], said)
    return moved


async def delete(storage: Storage, ids: Sequence[str], *, cascade: bool) -> int:
    """Delete jobs; how many in all. One that others wait for is refused, or they go with it, and count."""
    waiting = await _find_followers(storage, ids)
    if waiting and not cascade:
        raise IllegalMove(
            f"{len(waiting)} job(s) wait for what would be deleted, such as {min(waiting)}; "
            "cascade=True (--cascade) deletes them too"
        )
    deeper = waiting
    while deeper:
        deeper = await _find_followers(storage, sorted(deeper)) - waiting - set(ids)
        waiting |= deeper
    deleted = await transition(storage, sorted(waiting), Deleted())
    return deleted + await transition(storage, ids, Deleted())


async def delete_unfollowed(storage: Storage, ids: Sequence[str]) -> tuple[int, list[str]]:
    """Delete the jobs that nobody waits for; how many, and the ids of the others."""
    followed = []
    for start in range(0, len(ids), storage.chunk):
        part = ids[start : start + storage.chunk]
        children = dict(zip(part, await storage.followers(part), strict=True))
        waiting = await _find_unfinished(storage, sorted({child for each in children.values() for child in each}))
        followed += [id for id in part if not waiting.isdisjoint(children[id])]
    kept = frozenset(followed)
    return await transition(storage, [id for id in ids if id not in kept], Deleted()), followed


async def _find_followers(storage: Storage, ids: Sequence[str]) -> set[str]:
    """Jobs that wait for these and are not among them."""
    found: set[str] = set()
    for start in range(0, len(ids), storage.chunk):
        for children in await storage.followers(ids[start : start + storage.chunk]):
            found.update(children)
    return await _find_unfinished(storage, sorted(found - set(ids)))


async def _find_unfinished(storage: Storage, ids: Sequence[str]) -> set[str]:
    """Those of these that have not ended: one that was cancelled or completed meanwhile waits for nobody."""
    found: set[str] = set()
    for start in range(0, len(ids), storage.chunk):
        records = await storage.get(ids[start : start + storage.chunk])
        found.update(record.id for record in records if record is not None and record.state not in FINAL)
    return found


async def _move_chunk(storage: Storage, ids: list[str], said: Report) -> int:
    moved = 0
    for _ in range(_TRIES):
        changes = _decide_all(await storage.get(ids), said)
        if not changes:
            break
        verdicts = await storage.apply(changes)
        moved += sum(verdict.accepted for verdict in verdicts)
        ids = [change.id for change, verdict in zip(changes, verdicts, strict=True) if verdict.refusal is Refusal.STALE]
        if not ids:
            break
    return moved


def _decide_all(records: Sequence[Record | None], said: Report) -> list[Change]:
    changes = []
    for record in records:
        if record is None or record.hidden:
            continue
        try:
            changes.append(decide(record, said))
        except IllegalMove:
            continue
    return changes
