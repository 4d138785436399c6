"""A wrapper that makes a real store fail now and then, to test that the code above it loses no job.

About one call in n raises StoreError, *before* or *after* the real store did its work. For the caller both look the same:
the connection broke, and the outcome is unknown. A seeded random generator chooses the calls. A strict every n-th could
fall in step with its callers and always fail the same verb.
"""

from __future__ import annotations

import random
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
        "recover_claim",
        "note",
        "promote",
        "lapsed",
        "next_lapse",
        "expired",
        "prune",
        "get",
        "find",
        "heartbeat",
    )
)


class FlakyStorage:
    """Wraps a store; about one call of a verb in `every` fails.

    >>> from perdure.storage.memory.store import MemoryStorage
    >>> FlakyStorage(MemoryStorage(), every=3).name
    'memory'
    """

    def __init__(self, inner: Storage, *, every: int, seed: int = 0) -> None:
        self._inner = inner
        self._every = every
        self._chance = random.Random(seed)
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
            if self._chance.randrange(self._every):
                return await real(*args, **kwargs)
            self.failures += 1
            if self._chance.random() < 0.5:
                raise StoreError(f"{name}: the connection broke (before it was sent)")
            await real(*args, **kwargs)
            raise StoreError(f"{name}: the connection broke (after it was done)")

        return call
