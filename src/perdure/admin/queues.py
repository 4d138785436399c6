"""`app.queues`: list, pause, resume and configure queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from ..core.clock import SECOND
from ..core.validation import check_name
from ..core.verb import verb
from ..errors import InvalidCall
from ..observe.queue_names import queue_rows
from ..storage.contract import QueueRow, QueueSettings
from ..storage.rules.fairness import weights_of
from .base import AdminView

if TYPE_CHECKING:
    from .._sync import SyncQueues


@dataclass(frozen=True)
class QueueInfo:
    """A queue now, and its settings; `oldest` is for how many seconds its oldest ready job has been
    due."""

    name: str
    paused: bool
    depth: int
    oldest: float | None
    max_depth: int | None = None
    on_full: Literal["reject", "drop", "wait"] = "reject"
    drop_below: int | None = None
    fair: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)


class Queues(AdminView):
    """`app.queues`: pause, resume and bound named lines of jobs.

    >>> from perdure import Perdure
    >>> Perdure("memory://").queues.sync.list()
    ()
    """

    @property
    def sync(self) -> SyncQueues:
        """The blocking forms of its verbs."""
        from .._sync import SyncQueues

        return SyncQueues(self)

    @verb
    async def list(self) -> tuple[QueueInfo, ...]:
        """Every queue that has settings, waiting jobs, or had jobs that a worker claimed; by name."""
        return tuple(_queue_info(row) for row in await queue_rows(await self._storage()))

    @verb
    async def pause(self, name: str, /) -> None:
        """Claim no more jobs of this queue; those running go on. Durable."""
        queue = check_name(name, "queue")
        await (await self._storage()).pause(queue, True)

    @verb
    async def resume(self, name: str, /) -> None:
        """End a pause."""
        queue = check_name(name, "queue")
        await (await self._storage()).pause(queue, False)

    @verb
    async def configure(
        self,
        name: str,
        /,
        *,
        max_depth: int | None = None,
        on_full: Literal["reject", "drop", "wait"] = "reject",
        drop_below: int | None = None,
        fair: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Bound a queue. When `max_depth` jobs wait, "reject" raises QueueFull, "wait" waits for room, "drop" drops
        jobs of a priority below `drop_below` (without it: all) and waits with the others; without `max_depth` a queue is
        never full, and `on_full` has no effect. `fair`: its tenants take turns, each by its weight (1 where none is
        given), however many jobs each has."""
        settings = _queue_settings(name, max_depth, on_full, drop_below, fair, weights)
        loop_runtime = await self._runtime.open()
        await loop_runtime.storage.configure(settings)
        loop_runtime.counted_until = 0.0  # enqueues in a caller's transaction must count again

    def _spelled(self) -> str:
        return "app.queues"


def _queue_info(row: QueueRow) -> QueueInfo:
    settings = row.settings
    return QueueInfo(
        settings.name,
        settings.paused,
        row.depth,
        None if row.oldest is None else row.oldest / SECOND,
        settings.max_depth,
        settings.on_full,
        settings.drop_below,
        settings.fair,
        weights_of(settings.weights),
    )


def _queue_settings(
    name: str,
    max_depth: int | None,
    on_full: Literal["reject", "drop", "wait"],
    drop_below: int | None,
    fair: bool,
    weights: Mapping[str, float] | None,
) -> QueueSettings:
    if max_depth is not None and not _whole(max_depth, 1, 2**31):
        raise InvalidCall(
            f"max_depth must be a whole number from 1 to 2147483647, or None for no bound; it is {max_depth!r}"
        )
    if on_full not in ("reject", "drop", "wait"):
        raise InvalidCall(f"on_full={on_full!r} is none of 'reject', 'drop', 'wait'")
    if drop_below is not None and not _whole(drop_below, -(2**31), 2**31):
        raise InvalidCall(f"drop_below must be a priority, a whole number of at most 32 bits, not {drop_below!r}")
    if drop_below is not None and on_full != "drop":
        raise InvalidCall('drop_below= needs on_full="drop"')
    if not isinstance(fair, bool):
        raise InvalidCall(f"fair must be True or False, it is {fair!r}")
    if weights and not fair:
        raise InvalidCall("weights= needs fair=True")
    text = _weights_text(weights) if weights else None
    return QueueSettings(check_name(name, "queue"), False, max_depth, on_full, drop_below, fair, text)


def _whole(value: object, least: int, beyond: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < beyond


def _weights_text(weights: Mapping[str, float]) -> str:
    """Shares of tenants; a tenant is named up to its "/"."""
    if not isinstance(weights, Mapping):
        raise InvalidCall(f"weights is a mapping of tenants to numbers, not {type(weights).__name__}")
    for tenant, weight in weights.items():
        check_name(tenant, "tenant")
        if "/" in tenant:
            raise InvalidCall(f"weights are given to whole tenants, the part before '/': {tenant!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.001 <= weight <= 1000:
            raise InvalidCall(f"the weight of {tenant!r} must be a number from 0.001 to 1000, it is {weight!r}")
    return msgspec.json.encode(dict(weights)).decode()
