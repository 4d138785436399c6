"""Perdure: a durable job queue on the database you already have.

>>> from perdure import Perdure
>>> app = Perdure("memory://")
>>> @app.task
... async def greet(name: str) -> str:
...     return f"hello {name}"
>>> job = greet.sync.enqueue("Ada")
>>> app.jobs.sync.get(job.id).state
<State.READY: 'ready'>
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import Perdure as Perdure
    from .context import Context as Context
    from .context import Transaction as Transaction
    from .doors import QueueInfo as QueueInfo
    from .doors import WorkerInfo as WorkerInfo
    from .errors import DuplicateTask as DuplicateTask
    from .errors import HoldLost as HoldLost
    from .errors import IllegalMove as IllegalMove
    from .errors import InvalidCall as InvalidCall
    from .errors import JobCancelled as JobCancelled
    from .errors import JobDead as JobDead
    from .errors import JobNotSuccessful as JobNotSuccessful
    from .errors import JobSkipped as JobSkipped
    from .errors import NoApp as NoApp
    from .errors import NoContext as NoContext
    from .errors import NoLoop as NoLoop
    from .errors import NotFound as NotFound
    from .errors import PerdureError as PerdureError
    from .errors import QueueFull as QueueFull
    from .errors import ResultTimeout as ResultTimeout
    from .errors import StoreError as StoreError
    from .errors import UnknownParent as UnknownParent
    from .flow.flow import Continue as Continue
    from .flow.flow import Flow as Flow
    from .flow.flow import Graph as Graph
    from .flow.flow import chain as chain
    from .flow.flow import graph as graph
    from .flow.flow import group as group
    from .handle import JobHandle as JobHandle
    from .item import Item as Item
    from .job import ANY as ANY
    from .job import AttemptError as AttemptError
    from .job import Job as Job
    from .job import Loss as Loss
    from .job import Page as Page
    from .job import State as State
    from .limit import Limit as Limit
    from .options import Unique as Unique
    from .outcome import Dead as Dead
    from .outcome import Outcome as Outcome
    from .outcome import Retry as Retry
    from .outcome import Skip as Skip
    from .outcome import Snooze as Snooze
    from .provide import PROVIDED as PROVIDED
    from .registry import Registry as Registry
    from .retry import Backoff as Backoff
    from .retry import Retention as Retention
    from .settings import Thresholds as Thresholds
    from .task import Call as Call
    from .task import Task as Task
    from .timetable import ScheduleInfo as ScheduleInfo
    from .worker.pool import WorkerPool as WorkerPool
    from .worker.worker import Worker as Worker
    from .worker.worker import WorkerSpec as WorkerSpec

__version__ = "0.1.0"

# Where each public name lives. They are imported when first asked for (PEP 562): a program that only raises outcomes
# or catches errors does not pay for the rest.
_HOMES = {
    "app": ("Perdure",),
    "context": ("Context", "Transaction"),
    "errors": (
        "DuplicateTask",
        "HoldLost",
        "PerdureError",
        "IllegalMove",
        "InvalidCall",
        "JobCancelled",
        "JobDead",
        "JobNotSuccessful",
        "JobSkipped",
        "NoApp",
        "NoContext",
        "NoLoop",
        "NotFound",
        "QueueFull",
        "ResultTimeout",
        "StoreError",
        "UnknownParent",
    ),
    "doors": ("QueueInfo", "WorkerInfo"),
    "flow.flow": ("Continue", "Flow", "Graph", "chain", "graph", "group"),
    "handle": ("JobHandle",),
    "item": ("Item",),
    "job": ("ANY", "AttemptError", "Job", "Loss", "Page", "State"),
    "limit": ("Limit",),
    "options": ("Unique",),
    "outcome": ("Dead", "Outcome", "Retry", "Skip", "Snooze"),
    "provide": ("PROVIDED",),
    "registry": ("Registry",),
    "retry": ("Backoff", "Retention"),
    "settings": ("Thresholds",),
    "task": ("Call", "Task"),
    "timetable": ("ScheduleInfo",),
    "worker.pool": ("WorkerPool",),
    "worker.worker": ("Worker", "WorkerSpec"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker reads the imports above; this would let it believe every name
    __all__ = sorted(_HOME_OF)

    def __getattr__(name):
        home = _HOME_OF.get(name)
        if home is None:
            from .later import NAMES, not_yet

            told = f"module 'perdure' has no attribute {name!r}"
            raise AttributeError(not_yet(f"perdure.{name}") if name in NAMES else told, name=name)
        from importlib import import_module

        value = getattr(import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
