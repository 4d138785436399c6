"""Perdure and what people write themselves on MongoDB."""

from collections.abc import Sequence

from benchmarks.suite import Suite

from .asyncmq import AsyncMQ
from .goals import goals
from .perdure import PerdureMongo
from .place import opened, version_of_the_run
from .plain import PlainLoop
from .raw import raw_labels, raw_rate


def _machine() -> Sequence[str]:
    return [f"MongoDB {version_of_the_run()}, a replica set of one member, 0.25 GB of cache"]


SUITE = Suite(
    name="mongo",
    title="MongoDB",
    contenders=(PerdureMongo, PlainLoop, AsyncMQ),
    raw_labels=raw_labels,
    raw_rate=raw_rate,
    goals=goals,
    machine=_machine,
    opened=opened,
    remarks=(
        "The server is on the same machine. Every contender waits until the journals of a majority have its writes.",
        "The loop takes the best ready job with find_one_and_update, calls the handler and marks the job as done: no "
        "retries, no renewals, no batches, no fence. It and asyncmq drain fewer jobs, which favours them.",
    ),
)
