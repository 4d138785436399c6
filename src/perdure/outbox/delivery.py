"""Handing the jobs of one batch to their store, in order, and noting what became of each.

Most batches are one enqueue. When the store does not take it whole, there are three reasons:

- A bounded queue is full. Its jobs wait in the outbox, those of other queues go on.
- The store is out of reach. Everything waits.
- The store refuses. Then the jobs are tried one by one. If some are accepted, those that are refused twice are at fault
  themselves and are set aside; jobs that share a key with one wait behind it until that is known. If none is accepted, it is
  the store's trouble, and everything waits.

A delivery never raises: what it could not do is in `error`, and what it did must still be confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ..core.record import NewJob
from ..storage.contract import QueueAtCapacity, Storage

ANSWER_WITHIN = 30.0  # seconds; the outbox keeps the relay's turn meanwhile
OUT_OF_REACH = (ConnectionError, TimeoutError)


class Parcel(NamedTuple):
    """A job with the number of its row."""

    number: int
    job: NewJob


class Delivery:
    """What became of a batch."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self.moved: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.full: set[str] = set()
        self.asked: set[str] = set()  # queues of which something was tried
        self.error: Exception | None = None

    async def deliver(self, parcels: Sequence[Parcel]) -> None:
        """Move what the store takes."""
        if not parcels or self.error is not None:
            return
        try:
            await self._put(parcels)
        except QueueAtCapacity as full:
            await self.deliver([parcel for parcel in parcels if parcel.job.queue != full.queue])
            await self._fill([parcel for parcel in parcels if parcel.job.queue == full.queue])
        except OUT_OF_REACH as error:
            self.error = error
        except Exception as error:
            if len(parcels) == 1:
                self.error = error  # its fault or the store's: who knows, before another is accepted
            else:
                await self._one_by_one(parcels)

    async def _fill(self, parcels: Sequence[Parcel]) -> None:
        """Jobs of a queue that has not room for all: as many as fit, in steps that double."""
        step = 1
        while parcels and self.error is None:
            try:
                await self._put(parcels[:step])
            except QueueAtCapacity as full:
                if step == 1:
                    self.full.add(full.queue)
                    return
                step = 1
            except OUT_OF_REACH as error:
                self.error = error
            except Exception:
                await self._one_by_one(parcels)
                return
            else:
                parcels = parcels[step:]
                step *= 2

    async def _one_by_one(self, parcels: Sequence[Parcel]) -> None:
        suspects: list[Parcel] = []
        moved_before = len(self.moved)
        waiting = set[str]()  # keys of suspects
        for parcel in parcels:
            if parcel.job.queue in self.full or parcel.job.key in waiting:
                continue
            if await self._refusal(parcel) is None:
                continue
            if self.error is not None:
                return
            suspects.append(parcel)
            if parcel.job.key is not None:
                waiting.add(parcel.job.key)
        others = len(self.moved) > moved_before
        for parcel in suspects:
            refusal = await self._refusal(parcel)
            if self.error is not None:
                return
            if refusal is not None and others:
                self.refused.append((parcel.number, f"the store refuses it: {type(refusal).__name__}: {refusal}"))
            elif refusal is not None:
                self.error = refusal
                return

    async def _refusal(self, parcel: Parcel) -> Exception | None:
        """Why this one is not accepted, None: it is, or its queue is full."""
        try:
            await self._put([parcel])
        except QueueAtCapacity as full:
            self.full.add(full.queue)
        except OUT_OF_REACH as error:
            self.error = error
            return error
        except Exception as error:
            return error
        return None

    async def _put(self, parcels: Sequence[Parcel]) -> None:
        self.asked |= {parcel.job.queue for parcel in parcels}
        async with asyncio.timeout(ANSWER_WITHIN):
            await self._store.enqueue([parcel.job for parcel in parcels])
        self.moved += [parcel.number for parcel in parcels]
