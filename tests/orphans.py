"""Watches every worker of a test: whatever a worker holds must run, wait for a slot, or be reported to the store."""

from __future__ import annotations

import asyncio

import pytest

from perdure.worker.orphans import Orphans

LOOK_EVERY = 0.025  # seconds
LOOKS = 12  # in a row that must find an attempt orphaned: less is the moment between two steps


class OrphanWatch:
    """Looks at the workers of one test again and again, in their own event loops."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def begin(self, orphans: Orphans) -> None:
        self._look(orphans, {}, asyncio.get_running_loop())

    def _look(self, orphans: Orphans, before: dict[object, int], loop: asyncio.AbstractEventLoop) -> None:
        seen = {attempt: before.get(attempt, 0) + 1 for attempt in orphans.now()}
        self.found += [f"{attempt!r}"[:1000] for attempt, looks in seen.items() if looks == LOOKS]
        if not orphans.closed:
            loop.call_later(LOOK_EVERY, self._look, orphans, seen, loop)


@pytest.fixture(autouse=True)
def orphan_watch(monkeypatch):
    """Fails a test in which a worker held a job and did nothing about it."""
    watch = OrphanWatch()
    begin = Orphans.__init__

    def watched(orphans, *arguments):
        begin(orphans, *arguments)
        watch.begin(orphans)

    monkeypatch.setattr(Orphans, "__init__", watched)
    yield watch
    assert not watch.found, f"a worker held jobs that nothing in it worked on: {watch.found}"
