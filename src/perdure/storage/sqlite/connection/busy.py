"""Repeats calls while another connection keeps the file locked, and rolls back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .driver import BUSY, LOCKED, Connection, Driver

BUSY_PAUSE = 0.0003  # seconds; SQLite's own back-off is coarse
BUSY_LIMIT = 30.0

Retry = Callable[..., Any]  # calls a function with arguments until the file is not busy


def retry_of(driver: Driver, limit: float = BUSY_LIMIT, go_on: Callable[[bool], bool] = lambda busy: True) -> Retry:
    """A function that calls another until the file is not busy, for at most so many seconds. It calls `go_on(True)` before
    it tries again, and stops if that is False; it calls `go_on(False)` when the file is free."""

    def retry(call: Callable[..., Any], *arguments: Any) -> Any:
        deadline = 0.0
        while True:
            try:
                answer = call(*arguments)
            except driver.error as error:
                if driver.code(error) not in (BUSY, LOCKED):
                    raise
                deadline = deadline or time.monotonic() + limit
                if time.monotonic() > deadline or not go_on(True):
                    raise
            else:
                if deadline:
                    go_on(False)
                return answer
            time.sleep(BUSY_PAUSE)

    return retry


def roll_back(connection: Connection) -> None:
    """Roll back the open transaction, if there is one."""
    if connection.in_transaction():
        connection.rows("ROLLBACK")
