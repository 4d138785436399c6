"""The raw limit: finish the last batch and claim the next in one script, with no handler, codec or worker.

A job is what a durable queue cannot do without: an id, a payload that is written once, a hold with a lease while it runs,
and an outcome that stays. One connection, one exchange at a time.
"""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contender import chunks
from benchmarks.payload import payloads

from .place import address, connected

BATCHES = (100, 500)
SCRIPT = Path(__file__).with_name("exchange.lua")
READY, PAYLOADS, RUNNING, OUTCOMES = "ready", "payloads", "running", "outcomes"


def raw_labels() -> Sequence[str]:
    return [f"redis-py by {batch}" for batch in BATCHES]


def raw_rate(place: Path, label: str, jobs: int) -> dict[str, float]:
    batch = int(label.rpartition(" ")[2])
    with connected(address(place)) as client:
        for chunk in chunks(payloads(jobs), 1_000):
            by_id = {str(uuid.uuid4()): text for text in chunk}
            client.hset(PAYLOADS, mapping=by_id)
            client.zadd(READY, {job: float(text[:20]) for job, text in by_id.items()})
        exchange = client.register_script(SCRIPT.read_text())
        started = time.perf_counter()
        held: list[str] = []
        stamp = 0
        while held or not stamp:
            stamp += 1
            claimed = exchange(keys=[READY, PAYLOADS, RUNNING, OUTCOMES], args=[batch, stamp, *held])
            held = claimed[::2]
        seconds = time.perf_counter() - started
        finished = client.hlen(OUTCOMES)
    assert finished == jobs, f"{jobs} inserted, {finished} finished"
    return {"rate": jobs / seconds}
