"""Enqueues jobs through a caller's connection: one JSON text, only INSERT and plain SELECT."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from perdure.core.record import NewJob
from perdure.storage.contract import CallerStatements

from ..queries import load
from ..reading.records import digest, json_text, marked

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def insertion(jobs: Sequence[NewJob], schema: str, now: int | None) -> CallerStatements:
    """The statements that put the jobs on record in a transaction that the caller owns."""
    # a text before it is JSON: callers teach their drivers other ways with JSON
    sql = insert_into(schema, jobs, parameter="?::text", room="true")
    text = _in_ascii(full_text(jobs, now))
    scopes = {job.unique_scope for job in jobs if job.unique_key is not None}
    inserts = [(sql["insert"], text)]
    if scopes & {"waiting", "active"}:
        inserts.insert(0, (sql["take_held"], text))
    if scopes & {"any", "window"}:
        inserts.insert(0, (sql["take_kept"], text))
    return CallerStatements(tuple(inserts), (sql["readback"], text), (sql["owners"], text))


def insert_into(schema: str, jobs: Sequence[NewJob], **parts: str) -> Mapping[str, str]:
    """The statements that store these jobs: only with limits or parents they write word of that, and only with keys
    besides they look for owners who stand for parents."""
    words = {"given_jobs": "{given}", "given_after": "given.after", "given_waits": "given.waits", "also": ""}
    if any(job.after is not None for job in jobs):
        words["also"] += "{also_edges}"
        if any(job.unique_key is not None for job in jobs):
            words |= {"given_jobs": "{given_led}", "given_after": "{led_after}", "given_waits": "{led_waits}"}
    if any(job.limits is not None for job in jobs):
        words["also"] += "\n{also_news}"
    return load("caller_insert", schema, **words, **parts)


def full_text(jobs: Sequence[NewJob], now: int | None, ranks: Sequence[int | None] | None = None) -> str:
    """Jobs with everything that a job may have."""
    shares = ranks or [None] * len(jobs)
    given = enumerate(zip(jobs, shares, strict=True))
    return json_text([_fields(number, job, now, rank) for number, (job, rank) in given])


def _in_ascii(text: str) -> str:
    """The same JSON for sessions of any encoding."""
    return text if text.isascii() else _NOT_ASCII.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _fields(number: int, job: NewJob, now: int | None, rank: int | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "number": number,
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "delay": job.delay,
        "at": job.at,
        "now": now,
        "payload": job.payload,
        "max_attempts": job.max_attempts,
        "timeout": job.timeout,
        "lease": job.lease,
        "backoff": unless_default(job, "backoff"),
        "retention": unless_default(job, "retention"),
        "dead_retention": unless_default(job, "dead_retention"),
        "expires": job.expires,
        "key": marked(job.key),
        "tenant": job.tenant,
        "routing_key": job.routing_key,
        "tags": job.tags,
        "meta": job.meta,
        "unique_key": marked(job.unique_key),
        "unique_scope": job.unique_scope,
        "unique_window": job.unique_window,
        "chain_id": job.chain_id,
        "after": job.after,
        "run_when": unless_default(job, "run_when"),
        "waits": job.waits,
        "limits": job.limits,
        "min_version": job.min_version,
        "gate": None if job.limits is None else digest(job.limits),
        "rank": rank,
    }
    return {name: value for name, value in fields.items() if value is not None}


# What NULL means in a job's row, as in queries/record.sql. It is part of the stored format: it stays as it is when a default
# of Perdure changes.
STORED_AS_NULL = {
    "backoff": '["exponential",1000000,2.0,3600000000,0]',
    "retention": '{"age":604800000000}',
    "dead_retention": "{}",
    "run_when": "succeeded",
}


def unless_default(job: NewJob, name: str) -> str | None:
    """A policy, None if it is the default."""
    text: str = getattr(job, name)
    return None if text == STORED_AS_NULL[name] else text
