"""Checks stored rows a few at a time and repairs what a failed script, or another program, left behind.

From one prune to the next every row is checked. Scripts of a few hundred rows are short, and others run between them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from perdure.core.log_limit import is_new

from . import kv
from .connection.client import RedisClient
from .reading.records import Records, records_of

AUDITED = 500  # rows that one script checks
AUDITS = 8  # scripts of that size in one inspection
SCANNED = 5  # keys that an audit walks along
MOST_AUDITS = 4_000  # audits in a row, after an index was lost
_log = logging.getLogger("perdure")
Time = Callable[[], Any]


class Audit:
    """Where the last check of each key ended. `time`: the time for the scripts; `notify`: wakes listeners."""

    def __init__(
        self, client: RedisClient, time: Callable[[], Any], origin: bytes, notify: Callable[[Any, bool], None]
    ) -> None:
        self._client = client
        self._time = time
        self._origin = origin
        self._notify = notify
        self._cursors: list[bytes] = [b"0"] * SCANNED
        self._kv_cursor = self._inspected = b"0"

    async def check_all(self) -> None:
        """Check all rows, because an index was lost."""
        await self._client.command("HDEL", self._client.keys["meta"], "damaged")
        self._cursors, self._kv_cursor = [b"0"] * SCANNED, b"0"
        for _ in range(MOST_AUDITS):
            await self.check_rows()
            await self.check_kv()
            if self._rows_done and self._cursors[-1] == self._kv_cursor == b"0":
                return

    async def check_rows(self) -> int:
        """Check some more rows. Returns how many were put back into their indexes."""
        arguments = [self._time(), self._origin, AUDITED, *self._cursors]
        repaired, *self._cursors = await self._client.run("audit", arguments, repeat=True)
        if repaired:
            place = self._client.address
            if is_new(f"{place} put back"):
                _log.warning("%s: %d jobs stood in no index and were put back", place, repaired)
            self._notify(None, False)
        return int(repaired)

    async def check_kv(self) -> int:
        self._kv_cursor, repaired = await kv.audit(self._client, self._kv_cursor, AUDITED)
        return repaired

    async def inspect(self, limit: int) -> tuple[int, Records]:
        """Check rows, and read some more jobs. Returns how many were repaired, and the jobs."""
        self._inspected, answer = await self._client.run("inspect", [limit, self._inspected], repeat=True)
        repaired = await self.check_kv()
        for _ in range(AUDITS):
            repaired += await self.check_rows()
            if self._rows_done:
                break
        return repaired, records_of(answer)

    @property
    def _rows_done(self) -> bool:
        return self._cursors[0] == b"0"
