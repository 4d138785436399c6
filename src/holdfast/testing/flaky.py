"""A store that fails now and then, around a real one: to see that nothing above it loses a job.

Every n-th call raises StoreError, in turn *before* the real store was asked and *after* it did its work, which for a
caller looks the same: the connection broke, and the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import StoreError
from ..storage.contract import Storage

FLAKY_VERBS = frozenset(
    (
        "enqueue",
        "exchange",
        "renew",
        "check",
        "holding",
        "note",
        "promote",
        "lapsed",
        "expired",
        "prune",
        "get",
        "find",
        "beat",
    )
)


class FlakyStorage:
    """Wraps a store; every `every`-th call of a verb fails.

    >>> from holdfast.storage.memory import MemoryStorage
    >>> FlakyStorage(MemoryStorage(), every=3).name
    'memory'
    """

    def __init__(self, inner: Storage, *, every: int) -> None:
        self._inner = inner
        self._every = every
        self._calls = 0
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        return self._flaky(name, real) if name in FLAKY_VERBS else real

    async def apply(self, changes: Any) -> Any:
        return list((await self.exchange(changes)).verdicts)

    async def claim(self, claim: Any) -> Any:
        return list((await self.exchange((), claim)).claimed)

    def _flaky(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            if self._calls % self._every:
                return await real(*args, **kwargs)
            self.failures += 1
            if self.failures % 2:
                raise StoreError(f"{name}: the connection broke (before it was sent)")
            await real(*args, **kwargs)
            raise StoreError(f"{name}: the connection broke (after it was done)")

        return call
