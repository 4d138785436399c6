"""Limits repeated log lines: the same line is logged at most once a minute."""

from __future__ import annotations

from threading import Lock
from time import monotonic

REPEATED_EVERY = 60.0  # seconds before the same line is logged again
MOST_LINES = 1_000

_logged: dict[str, float] = {}  # lines, and when each was logged
_lock = Lock()


def is_new(line: str) -> bool:
    """Whether this line was not logged within the last minute. Notes that it is logged now."""
    now = monotonic()
    with _lock:
        if now - _logged.get(line, -REPEATED_EVERY) < REPEATED_EVERY:
            return False
        if len(_logged) >= MOST_LINES:
            _forget_some(now)
        _logged[line] = now
    return True


def _forget_some(now: float) -> None:
    old = [line for line, at in _logged.items() if now - at >= REPEATED_EVERY]
    for line in old or list(_logged)[: MOST_LINES // 2]:
        del _logged[line]
