"""The raw limit: finish the last batch and claim the next in one transaction, with no handler, codec or worker.

A document has what a durable queue cannot do without: an id, a state outside the claim index once finished, a hold and a
lease; a finished one stays. One connection, one commit a batch, in the journals of a majority.
"""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.payload import payloads

from .place import address, database

BATCHES = (100, 500)


def raw_labels() -> Sequence[str]:
    return [f"pymongo by {batch}" for batch in BATCHES]


def raw_rate(place: Path, label: str, jobs: int) -> dict[str, float]:
    from pymongo import MongoClient

    batch = int(label.rpartition(" ")[2])
    with MongoClient(address(place)) as client:
        collection = database(client)["jobs"]
        collection.create_index([("rank", 1)], partialFilterExpression={"state": 0})
        collection.insert_many(
            [
                {"_id": str(uuid.uuid4()), "state": 0, "rank": n, "payload": text}
                for n, text in enumerate(payloads(jobs))
            ]
        )
        started = time.perf_counter()
        held: list[str] = []
        finished = stamp = 0
        while held or not stamp:
            stamp += 1
            taken = _exchange(client, collection, held, stamp, batch)
            finished += len(held)
            held = taken
        seconds = time.perf_counter() - started
    assert finished == jobs, f"{jobs} inserted, {finished} finished"
    return {"rate": jobs / seconds}


def _exchange(client: Any, collection: Any, held: list[str], stamp: int, batch: int) -> list[str]:
    with client.start_session() as session, session.start_transaction(write_concern=collection.write_concern):
        if held:
            mine = {"_id": {"$in": held}, "state": 1, "stamp": stamp - 1}
            collection.update_many(mine, {"$set": {"state": 2, "finished_at": stamp}}, session=session)
        found = collection.find({"state": 0}, session=session, batch_size=batch + 1).sort("rank", 1).limit(batch)
        taken = [document["_id"] for document in found]
        if taken:
            leased = {"$set": {"state": 1, "stamp": stamp, "until": stamp}, "$inc": {"attempt": 1}}
            collection.update_many({"_id": {"$in": taken}}, leased, session=session)
    return taken
