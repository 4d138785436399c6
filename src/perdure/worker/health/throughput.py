"""Counts what ended in this worker lately, by queue: how many jobs a second, and how long one occupied a slot. The heartbeat
has these figures, so that readers can add them up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import monotonic

from ..running.attempt import Attempt

WINDOW = 60.0  # seconds
QUEUES = 200  # queues in a heartbeat, the busiest first

Sums = dict[str, tuple[int, float]]  # by queue: jobs that ended, seconds that they kept their slots


class Throughput:
    """Counts ends as they are confirmed."""

    def __init__(self) -> None:
        self._sums: Sums = {}
        self._marks: deque[tuple[float, Sums]] = deque([(monotonic(), {})])

    def count(self, ended: Iterable[Attempt]) -> None:
        """These jobs ended here."""
        queue, jobs, kept = None, 0, 0.0
        for attempt in ended:
            if attempt.record.queue != queue:  # it seldom is another than the last one's
                self._add(queue, jobs, kept)
                queue, jobs, kept = attempt.record.queue, 0, 0.0
            jobs += 1
            kept += attempt.took
        self._add(queue, jobs, kept)

    def _add(self, queue: str | None, jobs: int, kept: float) -> None:
        if queue is not None:
            jobs_before, kept_before = self._sums.get(queue, (0, 0.0))
            self._sums[queue] = (jobs_before + jobs, kept_before + kept)

    def by_queue(self) -> dict[str, tuple[float, float]]:
        """By queue: jobs a second in about the last minute, and seconds of a slot per job (of all, if none ended lately)."""
        now = monotonic()
        while len(self._marks) > 1 and now - self._marks[1][0] >= WINDOW:
            self._marks.popleft()
        since, before = self._marks[0]
        figures = {}
        for queue, (jobs, kept) in self._sums.items():
            jobs_then, kept_then = before.get(queue, (0, 0.0))
            lately = jobs - jobs_then
            seconds = (kept - kept_then) / lately if lately else kept / jobs
            figures[queue] = (round(lately / max(now - since, 1.0), 3), round(seconds, 6))
        if now - self._marks[-1][0] >= 1.0:
            self._marks.append((now, dict(self._sums)))
        return dict(sorted(figures.items(), key=lambda each: -each[1][0])[:QUEUES])
