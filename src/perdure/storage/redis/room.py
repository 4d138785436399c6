"""Room for so many at once. Whoever finds some takes it without waiting a turn; the others wait in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """As a semaphore, which takes several calls where nobody is in the way."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def taken(self) -> bool:
        """Take a place, if one is free."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def take(self, within: float) -> None:
        """Wait for a place; TimeoutError when there is none for so long."""
        if self.taken():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(within):
                await place
        except BaseException:
            if place.done() and not place.cancelled():  # it was given to us, and we are gone
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place up, to the one who has waited longest: nobody can take it from him."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
