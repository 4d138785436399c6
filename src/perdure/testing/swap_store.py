"""Give an app another store during a test."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import TYPE_CHECKING

from perdure.client.runtime import LoopRuntimes
from perdure.core.clock import Clock
from perdure.settings import check_clock

from .app_runtime import runtime_of

if TYPE_CHECKING:
    from perdure.app import Perdure


class swap:  # lower case, because it is used as a verb: with swap(app, "memory://"): …
    """Give an app another store inside a `with` or `async with` block, and its own again afterwards.

    >>> from perdure import Perdure
    >>> app = Perdure("sqlite:///jobs.db")
    >>> with swap(app, "memory://"):
    ...     app.jobs.sync.count()
    0
    """

    def __init__(self, app: Perdure, url: str = "memory://", *, clock: Clock | None = None) -> None:
        self._app = app
        self._settings = dataclasses.replace(app.settings, url=url, clock=check_clock(clock) or app.settings.clock)

    def __enter__(self) -> Perdure:
        app = self._app
        self._before = app.settings, runtime_of(app).loops
        app.settings, runtime_of(app).loops = self._settings, LoopRuntimes(self._settings)
        return app

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        from perdure.sync import run_if_running

        loops = runtime_of(self._app).loops
        self._app.settings, runtime_of(self._app).loops = self._before
        run_if_running(loops.close)

    async def __aenter__(self) -> Perdure:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        loops = runtime_of(self._app).loops
        await loops.close()
        self.__exit__(kind, error, trace)
