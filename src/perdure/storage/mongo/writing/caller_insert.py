"""Enqueues in a session that the caller owns.

The caller's own client runs the operations of an ordinary enqueue inside the caller's transaction: reads and inserts, and
the update of a key whose window is over. It does not write to parents or to accounts of fair queues: such jobs are blocked
until `resolve_edges` runs. The signal is written inside too, so other processes see it if and when the caller commits.
Nothing here commits or repeats. Write conflicts reach the caller as the driver raised them, because
`session.with_transaction` repeats by their labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymongo.errors import PyMongoError

from perdure.core.record import NewJob
from perdure.errors import InvalidCall, StoreError
from perdure.storage.contract import CallerSession, EnqueueResult

from ..address import MongoAddress
from ..connection.errors import error_for, is_transient
from ..connection.operations import Steps, find, insert, run_async, run_blocking
from ..connection.server import CODEC
from ..connection.signals import signal_document
from ..edges.resolve_edges import EdgeResolution
from .enqueue import enqueue


class SessionEnqueue(CallerSession):
    """One enqueue for a session of either driver."""

    def __init__(self, jobs: Sequence[NewJob], address: MongoAddress, identity: str, now: Callable[[], int]) -> None:
        self._jobs = jobs
        self._address = address
        self._identity = identity
        self._now = now

    def enqueue_blocking(self, session: Any) -> list[EnqueueResult]:
        self._check(session)
        try:
            return run_blocking(self._steps(), self._database(session), session)
        except PyMongoError as error:
            raise self._error_for_caller(error) from error

    async def enqueue_async(self, session: Any) -> list[EnqueueResult]:
        self._check(session)
        try:
            return await run_async(self._steps(), self._database(session), session)
        except PyMongoError as error:
            raise self._error_for_caller(error) from error

    def durable(self, session: Any) -> bool:
        """Whether the caller's commit waits for a majority, as it does by the server's default."""
        options = getattr(getattr(session, "_transaction", None), "opts", None)
        concern = getattr(options, "write_concern", None) or session.client.write_concern
        return concern.document.get("w", "majority") == "majority" and bool(concern.document.get("j", True))

    def _check(self, session: Any) -> None:
        if session.has_ended:
            raise InvalidCall("connection= is a session that has ended")
        if not session.in_transaction:
            raise InvalidCall(
                "connection= is a session in no transaction, so nothing could be undone: enqueue inside "
                "session.start_transaction(), or session.with_transaction(…)"
            )

    def _database(self, session: Any) -> Any:
        return session.client.get_database(self._address.database, codec_options=CODEC)

    def _steps(self) -> Steps[list[EnqueueResult]]:
        found = yield from find("meta", {"_id": "schema"})
        if not found or found[0].get("identity") != self._identity:
            raise StoreError(
                f"connection= leads to another server than {self._address}; "
                "jobs join a transaction only in their own database"
            )
        done = yield from enqueue(self._jobs, self._now(), 0, EdgeResolution.ELSEWHERE)
        if done.ready:
            yield from insert("signals", [signal_document(done.ready, False)])
        return done.placed

    def _error_for_caller(self, error: PyMongoError) -> Exception:
        return error if is_transient(error) else error_for(error, self._address)
