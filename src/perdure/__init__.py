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
    from .admin.queues import QueueInfo as QueueInfo
    from .admin.schedules import ScheduleInfo as ScheduleInfo
    from .admin.workers import WorkerInfo as WorkerInfo
    from .app import Perdure as Perdure
    from .client.handle import JobHandle as JobHandle
    from .core.backoff import Backoff as Backoff
    from .core.job import ANY as ANY
    from .core.job import AttemptError as AttemptError
    from .core.job import Job as Job
    from .core.job import Loss as Loss
    from .core.job import Page as Page
    from .core.job import State as State
    from .core.limit import Limit as Limit
    from .core.outcome import Dead as Dead
    from .core.outcome import Outcome as Outcome
    from .core.outcome import Retry as Retry
    from .core.outcome import Skip as Skip
    from .core.outcome import Snooze as Snooze
    from .core.retention import Retention as Retention
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
    from .flow.graph import Continue as Continue
    from .flow.graph import Flow as Flow
    from .flow.graph import Graph as Graph
    from .flow.graph import chain as chain
    from .flow.graph import graph as graph
    from .flow.graph import group as group
    from .handler.context import Context as Context
    from .handler.context import Transaction as Transaction
    from .handler.item import Item as Item
    from .settings import Thresholds as Thresholds
    from .tasks.options import Unique as Unique
    from .tasks.providers import PROVIDED as PROVIDED
    from .tasks.registry import Registry as Registry
    from .tasks.task import Call as Call
    from .tasks.task import Task as Task
    from .worker.worker import Worker as Worker
    from .worker.worker import WorkerSpec as WorkerSpec
    from .worker.worker_pool import WorkerPool as WorkerPool

__version__ = "0.1.0"

# Where each public name lives. They are imported when first asked for (PEP 562): a program that only raises outcomes
# or catches errors does not pay for the rest.
_HOMES = {
    "app": ("Perdure",),
    "handler.context": ("Context", "Transaction"),
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
    "admin.queues": ("QueueInfo",),
    "admin.workers": ("WorkerInfo",),
    "flow.graph": ("Continue", "Flow", "Graph", "chain", "graph", "group"),
    "client.handle": ("JobHandle",),
    "handler.item": ("Item",),
    "core.job": ("ANY", "AttemptError", "Job", "Loss", "Page", "State"),
    "core.limit": ("Limit",),
    "tasks.options": ("Unique",),
    "core.outcome": ("Dead", "Outcome", "Retry", "Skip", "Snooze"),
    "tasks.providers": ("PROVIDED",),
    "tasks.registry": ("Registry",),
    "core.backoff": ("Backoff",),
    "core.retention": ("Retention",),
    "settings": ("Thresholds",),
    "tasks.task": ("Call", "Task"),
    "admin.schedules": ("ScheduleInfo",),
    "worker.worker_pool": ("WorkerPool",),
    "worker.worker": ("Worker", "WorkerSpec"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker reads the imports above; this would let it believe every name
    __all__ = sorted(_HOME_OF)

    def __getattr__(name):
        home = _HOME_OF.get(name)
        if home is None:
            from .tasks.not_released import NAMES, not_yet

            told = f"module 'perdure' has no attribute {name!r}"
            raise AttributeError(not_yet(f"perdure.{name}") if name in NAMES else told, name=name)
        from importlib import import_module

        value = getattr(import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
