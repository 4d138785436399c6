"""What a handler sees of its job and may say about it on the way."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .errors import HoldLost, NoContext
from .job import Job, Loss, Record, job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._sync import SyncContext, SyncTransaction
    from .app import Holdfast

_current: ContextVar[Context] = ContextVar("holdfast.context")
