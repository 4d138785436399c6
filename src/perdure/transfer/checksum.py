"""How many things there are, and a checksum of all of them that does not depend on their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from ..storage.contract import Storage
from .entities import Entity

Told = Callable[[str, int, int], None]  # what is being done, how many things so far, of about how many (0: few)


class Checksum:
    """What was seen of one kind. `checksum` is the sum of a hash of each, cut to 64 bits."""

    def __init__(self, thing: Entity[Any], like: Checksum | None = None) -> None:
        """`like`: where things are few, only those that the other one has are counted."""
        self._thing = thing
        self._only = None if like is None or not thing.few else like._seen
        self._seen: set[int] = set()
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.checksum = 0

    @property
    def total(self) -> int:
        return self.counts.total()

    def add(self, thing: Any) -> None:
        number = int.from_bytes(blake2b(self._thing.text(thing), digest_size=8).digest(), "big")
        if self._thing.few:
            if number in self._seen or (self._only is not None and number not in self._only):
                return
            self._seen.add(number)
        self.counts[self._thing.counted_by(thing)] += 1
        self.checksum = (self.checksum + number) % (1 << 64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checksum) and (self.counts, self.checksum) == (other.counts, other.checksum)

    __hash__ = None  # type: ignore[assignment]


async def tally(thing: Entity[Any], store: Storage, stage: str, told: Told, like: Checksum | None = None) -> Checksum:
    """Count all that a store holds of a kind."""
    found = Checksum(thing, like)
    done, size = 0, await thing.size(store)
    async for page in thing.pages(store):
        for each in page:
            found.add(each)
        done += len(page)
        told(stage, done, size)
    return found
