"""Answers to jobs that wait for a value from outside.

An answer is a kv entry. It stays due until its job is sure to read it. `answer` wakes a job that waits for it. If the job
is running, upkeep checks it again later, because it may begin to wait.
"""

from __future__ import annotations

from ..core.job import FINAL, State
from ..core.lifecycle import RunNow, decide
from ..core.record import Record
from ..storage.contract import KvEntry, KvWrite, Storage
from .steps import ANSWER, name_of, waits_for

AGAIN = 500_000  # microseconds until a job that was running is checked again


async def answer(storage: Storage, job: Record, name: str, text: str) -> bool:
    """Store an answer, and wake its job if it sleeps. False when it was answered before."""
    now = await storage.now()
    write = KvWrite(ANSWER, name_of(job.id, name), text, version=0, due_at=now, job=job.id)
    if not (await storage.kv_write([write]))[0]:
        return False
    await deliver(storage, await storage.kv_read(ANSWER, [write.name]))
    return True


async def deliver_due(storage: Storage, limit: int) -> int:
    """Wake jobs for answers that they have not read, and return how many answers were checked."""
    due = await storage.kv_read(ANSWER, due=True, limit=limit)
    await deliver(storage, due)
    return len(due)


async def deliver(storage: Storage, answers: list[KvEntry]) -> None:
    if not answers:
        return
    records = await storage.get([row.job or "" for row in answers])
    now = await storage.now()
    writes = []
    for row, record in zip(answers, records, strict=True):
        is_read = record is None or record.state in FINAL or await _will_read(storage, record, row.name)
        due = None if is_read else now + AGAIN
        writes.append(KvWrite(row.kind, row.name, row.text, version=row.version, due_at=due, job=row.job))
    await storage.kv_write(writes)


async def _will_read(storage: Storage, record: Record, name: str) -> bool:
    """Whether the job is sure to read this answer. A job that waits for it is woken; others run when they are due."""
    if record.state is State.RUNNING:
        return False
    if record.state is not State.SCHEDULED or record.reason != waits_for(name.partition("/")[2]):
        return True
    return (await storage.apply([decide(record, RunNow())]))[0].accepted
