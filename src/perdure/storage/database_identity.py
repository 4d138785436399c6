"""Identifies the database of a SQL store, to check that a caller's connection leads to it.

A job can join a transaction only in its own database. The store knows its database. The caller's connection runs one plain
SELECT, and the answer is compared. The store also translates the errors of the drivers, because it knows what they mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import PerdureError

Rows = Sequence[Sequence[Any]]
ABORTED = (
    "the transaction of connection= is aborted, because a statement in it failed before: roll it back, or to a savepoint, "
    "and repeat"
)


class Unsafe(NamedTuple):
    """A setting of the caller's session that lets committed jobs be lost: which, when, and what mends it."""

    setting: str
    when: str
    remedy: str


class DatabaseIdentity(ABC):
    """See the module. Equal homes are the same database, as long as nothing was restarted."""

    role = "store"  # what it is to the app
    dialect: str  # what SQLAlchemy and Django call it
    once: bool  # the answer to the question holds as long as the connection lives
    question: str  # which database is this? Without parameters

    @abstractmethod
    def __str__(self) -> str:
        """The address for messages."""

    @abstractmethod
    def refuse(self, driver: object) -> None:
        """Raise when a connection of this driver cannot be used beside ours."""

    @abstractmethod
    def mismatch(self, answer: Rows) -> str | None:
        """Where a connection with this answer leads, None: home."""

    @abstractmethod
    def check(self, answer: Rows) -> Unsafe | None:
        """Raise when this connection cannot be used although it leads to our database; return a setting that may lose
        jobs."""

    @abstractmethod
    def explain(self, error: BaseException) -> PerdureError | None:
        """An error of the caller's driver as ours, None: it is the caller's own to handle."""
