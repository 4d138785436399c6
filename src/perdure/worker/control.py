"""Starts and stops a worker, and answers questions about it: what runners, pools, probes and tests need of a worker beyond
its public verbs."""

from __future__ import annotations

import asyncio
import importlib

from ..errors import InvalidCall
from ..storage.contract import Storage
from ..tasks.definition import TaskDefinition
from .health.probe import Condition
from .host import LoopShare, WorkerHost
from .leases.status_board import RunnerBoard
from .options import WorkerOptions
from .session import WorkSession


class WorkerControl:
    """A worker that is stopped, or has a session. `board` is the status board of a runner that has a supervisor."""

    def __init__(self, host: WorkerHost, options: WorkerOptions, board: RunnerBoard | None = None) -> None:
        self._host = host
        self._options = options
        self._board = board
        self._share: LoopShare | None = None
        self.session: WorkSession | None = None

    def with_board(self, board: RunnerBoard) -> WorkerControl:
        """The same worker, as a runner that writes to this board."""
        return WorkerControl(self._host, self._options, board)

    @property
    def id(self) -> str:
        return self._options.id

    @property
    def grace(self) -> float:
        return self._options.grace

    @property
    def holds(self) -> int:
        """How many jobs it holds."""
        return 0 if self.session is None else len(self.session.held)

    async def storage(self) -> Storage:
        return await self._host.storage()

    async def start(self) -> None:
        """Start to claim. Raises if there are no tasks."""
        if self.session is not None:
            return
        definitions = self._definitions()
        store = await self._host.storage()
        share = await self._host.open()
        session = WorkSession(self._host, self._options, self._board, store, definitions)
        share.acquire()
        try:
            await session.start()
        except BaseException:
            await share.release()
            raise
        self.session, self._share = session, share

    async def stop(self, hurry: asyncio.Event, grace: float | None = None) -> None:
        session, self.session = self.session, None
        share, self._share = self._share, None
        if session is None or share is None:
            return
        try:
            await session.stop(self.grace if grace is None else grace, hurry)
        finally:
            await share.release()

    async def flush(self, seconds: float) -> None:
        """Claim nothing more, hand back what has not started, report what has ended."""
        if self.session is not None:
            await self.session.flush(seconds)

    def confirmed_when_quiet(self) -> int | None:
        """How many attempts it has ended so far; None while it holds any or has something to report."""
        session = self.session
        if session is None or len(session.held) or not session.claim_loop.has_reported:
            return None
        return session.held.confirmed

    def condition(self) -> Condition:
        """For probes."""
        if self.session is None:
            return Condition(live=True, ready=False, why="it is not at work", facts={"worker": self.id})
        return self.session.condition()

    def _definitions(self) -> dict[str, TaskDefinition]:
        for module in self._host.app.imports:
            _import(module)
        known = self._host.app.definitions()
        if not known:
            raise InvalidCall(
                "this worker knows no task: define some with @app.task, or name their modules in Perdure(imports=[…])"
            )
        self._options.check_tasks(known)
        return known


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and imports something that is not
        raise InvalidCall(
            f"Perdure(imports=[{module!r}]): there is no module {error.name!r} to import; look at the name, and at sys.path"
        ) from error
