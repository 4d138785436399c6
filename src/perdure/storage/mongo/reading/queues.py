"""The small collections beside the jobs: queues and their settings, workers, logs."""

from __future__ import annotations

from perdure.storage.contract import QueueRow, QueueSettings, WorkerRow

from ..connection.operations import Steps, aggregate, delete, find, update
from .document_shapes import is_number, is_text
from .records import AT_A_PLACE, Document, queue_of


def settings_from(document: Document) -> QueueSettings:
    return QueueSettings(
        name=document["_id"],
        paused=document.get("paused", False),
        max_depth=_plain(document.get("max_depth")),
        on_full=document.get("on_full", "reject"),
        drop_below=_plain(document.get("drop_below")),
        fair=document.get("fair", False),
        weights=document.get("weights"),
    )


def configure(settings: QueueSettings) -> Steps[None]:
    """Write the settings of a queue; whether it is paused stays."""
    written = {name: getattr(settings, name) for name in ("max_depth", "on_full", "drop_below", "fair", "weights")}
    if settings.fair:
        written["shared"] = True  # from now on there may be jobs with shares, whatever is configured later
    yield from update("queues", [{"q": {"_id": settings.name}, "u": {"$set": written}, "upsert": True}])


def pause(queue: str, paused: bool) -> Steps[None]:
    yield from update("queues", [{"q": {"_id": queue}, "u": {"$set": {"paused": paused}}, "upsert": True}])


def queues(now: int) -> Steps[list[QueueRow]]:
    """Every queue with settings or waiting jobs."""
    configured = yield from find("queues", {})
    settings = {document["_id"]: settings_from(document) for document in configured}
    shared = {document["_id"] for document in configured if document.get("shared") or document.get("fair")}
    depth: dict[str, int] = {}
    oldest: dict[str, int] = {}

    def add(queue: str, jobs: int, due: int | None) -> None:
        depth[queue] = depth.get(queue, 0) + jobs
        if due is not None:
            oldest[queue] = max(oldest.get(queue, 0), now - due)

    # a plain job's rank, which the index knows, is its run_at; that of one with a share is not
    lanes = {"_id": "$place", "jobs": {"$sum": 1}, "due": {"$min": "$tie"}}
    for lane in (yield from aggregate("places", [{"$match": {"place": AT_A_PLACE}}, {"$group": lanes}])):
        queue = queue_of(lane["_id"])
        if queue is None:
            continue  # no place of ours
        if queue in shared:
            lane["due"] = yield from _first_run_at(lane["_id"])
        add(queue, lane["jobs"], int(lane["due"]) if is_number(lane["due"]) else None)
    aside = {"_id": "$queue", "jobs": {"$sum": 1}}
    waiting = {"marks": {"$elemMatch": {"$gte": "q", "$lt": "r"}}}
    for group in (yield from aggregate("jobs", [{"$match": waiting}, {"$group": aside}])):
        if is_text(group["_id"]):
            add(group["_id"], group["jobs"], None)
    return [
        QueueRow(settings.get(name) or QueueSettings(name), depth.get(name, 0), oldest.get(name))
        for name in sorted(settings.keys() | depth.keys())
    ]


def _first_run_at(lane: str) -> Steps[object]:
    since = {"$ifNull": ["$run_at", "$tie"]}
    found = yield from aggregate(
        "places", [{"$match": {"place": lane}}, {"$group": {"_id": None, "due": {"$min": since}}}]
    )
    return found[0]["due"] if found else None


def _plain(number: int | None) -> int | None:
    """A plain int: the driver returns large numbers as a class of its own."""
    return None if number is None else int(number)


# ---- workers and logs ------------------------------------------------------------------------------
def heartbeat_document(worker: WorkerRow, now: int) -> Document:
    return {"started_at": worker.started_at, "seen_at": now, "running": worker.running, "about": worker.about}


def leave(worker: str) -> Steps[None]:
    yield from delete("workers", {"_id": worker})


def workers(seen_within: int, now: int) -> Steps[list[WorkerRow]]:
    """Workers that were seen lately; the others are removed."""
    since = {"$gte": now - seen_within}
    found = yield from find("workers", {"seen_at": since}, sort={"_id": 1})
    yield from delete("workers", {"seen_at": {"$lt": now - seen_within}})
    return [
        WorkerRow(row["_id"], int(row["started_at"]), int(row["seen_at"]), int(row["running"]), row["about"])
        for row in found
    ]


def log(id: str) -> Steps[list[str]]:
    found = yield from find("logs", {"_id": id})
    return found[0]["lines"] if found else []
