"""What an outbox promises: a table beside a caller's own rows, in which jobs wait to be moved to their store.

A job can join a transaction only in the database of that transaction. Where the store is elsewhere, the caller's
transaction writes the whole job as one row of the outbox (`caller_statements`: one INSERT, nothing else). A relay moves it:
it reads a batch in order, enqueues it at the store, and deletes the rows. A kill between the last two repeats the enqueue,
and the store knows the ids already.

There is no cursor, because rows are not committed in the order of their numbers. Moved rows are deleted, and every row
that is there has still to be moved, however late it was committed.

One relay works at a time, by a lock that is released when its holder dies. The lock saves work and guards nothing: a relay
enqueues later rows only after earlier ones are stored, so two relays at once keep the order too.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from ..core.record import ROW_VERSION, NewJob
from ..errors import StoreError
from .contract import CallerStatements, EnqueueResult
from .database_identity import DatabaseIdentity

MOST_BYTES = 16 << 20  # of a batch: payloads may be large


class Late(EnqueueResult, frozen=True, gc=False):
    """A job that waits in an outbox. Its store learns of it after the commit."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A row that waits. `number` rises with the inserts, `enqueued_at` is the outbox's clock at the insert."""

    number: int
    enqueued_at: int
    text: str | bytes


class Aside(msgspec.Struct, frozen=True, gc=False):
    """A row that cannot be moved: why, and since when. It stays until somebody decides what to do with it."""

    number: int
    id: str
    error: str
    since: int


class OutboxState(msgspec.Struct, frozen=True, gc=False):
    """The state of an outbox: rows that wait, microseconds that the oldest has waited, rows that were set aside."""

    waiting: int
    oldest: int | None
    aside: int


class Batch(ABC):
    """Entries that this relay may move now, in order."""

    entries: Sequence[Entry]

    @abstractmethod
    async def confirm(self, moved: Sequence[int], aside: Sequence[tuple[int, str]]) -> None:
        """Delete what was moved and set aside what cannot be, by number. It holds once the batch is left without error."""


class Outbox(ABC):
    """One outbox, as one event loop uses it."""

    name: str  # the name of its database in messages

    @abstractmethod
    async def open(self) -> None:
        """Connect and check the table, making it when the settings say so. Opening twice is harmless."""

    @abstractmethod
    async def close(self) -> None:
        """Free connections and threads."""

    @abstractmethod
    def caller_statements(self, jobs: Sequence[NewJob]) -> CallerStatements:
        """The rows of these jobs as statements for the caller's own transaction."""

    @abstractmethod
    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        """The database that a caller's connection must lead to."""

    @abstractmethod
    def batch(self, limit: int, but: Collection[str]) -> AbstractAsyncContextManager[Batch | None]:
        """The first entries, without those of some queues and those that need a newer Perdure. None: another relay works.
        At most `limit`, and at most `MOST_BYTES` unless one alone has more."""

    @abstractmethod
    async def state(self) -> OutboxState:
        """Its state now."""

    @abstractmethod
    async def list_aside(self, limit: int) -> list[Aside]:
        """Rows that were set aside, oldest first."""

    @abstractmethod
    async def bring_back(self) -> int:
        """Let the rows that were set aside wait again, and return how many."""

    @abstractmethod
    async def signal(self, queues: Sequence[str] = ()) -> None:
        """Wake relays, whichever queues are meant. Never raises."""

    @abstractmethod
    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` in this loop's thread when rows may have come. Gives the function that stops it."""


class Poison(StoreError):
    """A row of an outbox that holds no job."""


# ---- a job as a row --------------------------------------------------------------------------------
def rows_text(jobs: Sequence[NewJob], now: int | None) -> str:
    """The rows of jobs as one parameter. All of it is ASCII: a caller's database may have any encoding."""
    return json.dumps(
        [
            {
                "number": number,
                "id": job.id,
                "queue": queue_text(job.queue),
                "min_version": job.min_version,
                "enqueued_at": now,
                "job": json.dumps(msgspec.to_builtins(job), separators=(",", ":")),
            }
            for number, job in enumerate(jobs)
        ],
        separators=(",", ":"),
    )


def queue_text(queue: str) -> str:
    """A queue's name as it is compared in the table."""
    return json.dumps(queue)[1:-1]


def queues_text(queues: Collection[str]) -> str:
    return json.dumps([queue_text(queue) for queue in sorted(queues)])


_job = msgspec.json.Decoder(NewJob)


def job_in(entry: Entry) -> NewJob:
    """The job of a row. Poison says what is wrong with it."""
    try:
        job = _job.decode(entry.text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Poison(f"it holds no job: {error}") from None
    if job.min_version > ROW_VERSION:
        raise Poison(f"it needs a newer Perdure (row version {job.min_version}, this one knows {ROW_VERSION})")
    return job
