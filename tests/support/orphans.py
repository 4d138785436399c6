"""Watches every worker of a test: whatever a worker holds must run, wait for a slot, or be reported to the store."""

from __future__ import annotations

import asyncio

import pytest

from perdure.worker.leases.orphans import Orphans

LOOK_EVERY = 0.025  # seconds
LOOKS = 12  # in a row that must find an attempt orphaned: less is the moment between two steps


class OrphanWatch:
    """Looks at the workers of one test again and again, in their own event loops, and once more when one stops."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._seen: dict[Orphans, dict[object, int]] = {}  # in how many looks in a row

    def look(self, orphans: Orphans) -> None:
        before = self._seen.get(orphans, {})
        self._seen[orphans] = seen = {attempt: before.get(attempt, 0) + 1 for attempt in orphans.now()}
        self.found += [f"{attempt!r}"[:1000] for attempt, looks in seen.items() if looks == LOOKS]
        if not orphans.closed:
            asyncio.get_running_loop().call_later(LOOK_EVERY, self.look, orphans)

    def last_look(self, orphans: Orphans) -> None:
        """A worker stops: whoever was an orphan before, and still is, would stay one."""
        before = self._seen.get(orphans, {})
        self.found += [f"{attempt!r}"[:1000] for attempt in orphans.now() if 1 < before.get(attempt, 0) < LOOKS]


@pytest.fixture(autouse=True)
def orphan_watch(monkeypatch):
    """Fails a test in which a worker held a job and did nothing about it."""
    watch = OrphanWatch()
    begin, close = Orphans.__init__, Orphans.close

    def watched(orphans, *arguments):
        begin(orphans, *arguments)
        watch.look(orphans)

    def closed(orphans):
        watch.last_look(orphans)
        close(orphans)

    monkeypatch.setattr(Orphans, "__init__", watched)
    monkeypatch.setattr(Orphans, "close", closed)
    yield watch
    assert not watch.found, f"a worker held jobs that nothing in it worked on: {watch.found}"
