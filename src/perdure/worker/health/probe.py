"""Probes: show over HTTP and through a file whether a worker is live, and whether it is ready.

`/live` says whether its loops run: if not, only a restart helps. `/ready` says whether claims are answered: if not, the
store is in trouble or the worker is stopping, and a restart would not help. `/scale` says how many workers would clear
the backlog. A probe knows no worker: it gets a function that returns the condition of one worker, or of many.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

from ...errors import InvalidCall, PerdureError
from ...observe import log
from ...observe.scaling_hint import DEFAULT_TARGET, Scale, scale

if TYPE_CHECKING:
    from ..worker import Worker

PORT = 8641
HOST = "127.0.0.1"
TOUCHED_EVERY = 1.0  # seconds
FRESH = 15.0  # seconds; if a file was not touched for longer, its worker is not live
ASKED_WITHIN = 5.0  # seconds that a caller has for its request
ANSWERED_WITHIN = 5.0  # seconds that the store has to count its queues
HEAD = 8192  # bytes of a request
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Condition:
    """The condition of a worker. `why` says what is wrong, if anything is; `facts` are for people to read."""

    live: bool
    ready: bool
    why: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        return {"live": self.live, "ready": self.ready, "why": self.why, **self.facts}


class Probe:
    """Answers `/live`, `/ready` and `/scale` on a port, and touches a file while the worker lives.

    >>> Probe(lambda: Condition(live=True, ready=False, why="starting"), port=0).port
    0
    """

    def __init__(
        self,
        condition: Callable[[], Condition],
        *,
        port: int | None = None,
        host: str = HOST,
        file: str | os.PathLike[str] | None = None,
        scale: Callable[[float], Awaitable[Scale]] | None = None,
    ) -> None:
        if port is None and file is None:
            raise InvalidCall("a probe needs a port or a file: Probe.of(worker, port=8641)")
        self._condition = condition
        self._scale = scale
        self._host = host
        self._file = None if file is None else Path(file)
        self._server: asyncio.Server | None = None
        self._touching: asyncio.Task[None] | None = None
        self.port = port  # 0: any that is free; the real one once it has started

    @classmethod
    def of(
        cls,
        worker: Worker,
        *,
        port: int | None = None,
        host: str = HOST,
        file: str | os.PathLike[str] | None = None,
    ) -> Self:
        """The probe of a worker in this process."""
        from ..worker import control_of

        control = control_of(worker)

        async def scale_to(target: float) -> Scale:
            return await scale(await control.storage(), target)

        return cls(control.condition, port=port, host=host, file=file, scale=scale_to)

    async def start(self) -> None:
        if self.port is not None:
            try:
                self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=HEAD)
            except OSError as error:
                raise InvalidCall(f"the probe cannot listen on {self._host}:{self.port}: {error}") from error
            self.port = self._server.sockets[0].getsockname()[1]
            log.probe_listens(self._host, self.port)
        if self._file is not None:
            self._write(self._file)
            self._touching = asyncio.create_task(self._touch(self._file), name="perdure probe")

    async def stop(self) -> None:
        """Close the port and remove the file."""
        if self._server is not None:
            self._server.close()
        if self._touching is not None:
            self._touching.cancel()
            await asyncio.gather(self._touching, return_exceptions=True)
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.stop()

    # -- the file ------------------------------------------------------------------------------------
    async def _touch(self, file: Path) -> None:
        logged = False
        while True:
            await asyncio.sleep(TOUCHED_EVERY)
            try:
                if self._condition().live:
                    self._write(file)
                    logged = False
            except InvalidCall as error:  # a full disk, a folder that is away
                if not logged:
                    log.probe_not_written(error)
                logged = True

    def _write(self, file: Path) -> None:
        """Replace the file at once, so that no reader sees half of it."""
        beside = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(self._condition().summary()) + "\n")
            beside.replace(file)
        except OSError as error:
            raise InvalidCall(f"the probe cannot write {file}: {error}") from error

    # -- the port ------------------------------------------------------------------------------------
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ASKED_WITHIN):
                head = await reader.readuntil(b"\r\n\r\n")
            status, body = await self._answer(head.split(b"\r\n", 1)[0].decode("latin-1"))
            text = json.dumps(body, default=str).encode() + b"\n"
            writer.write(
                f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
                "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
            )
            if not head.startswith(b"HEAD "):
                writer.write(text)
            async with asyncio.timeout(ASKED_WITHIN):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a caller that does not speak HTTP, or is gone
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, request: str) -> tuple[int, dict[str, Any]]:
        method, _, rest = request.partition(" ")
        if method not in ("GET", "HEAD"):
            return 405, {"error": "only GET and HEAD are answered here"}
        wanted = urlsplit(rest.partition(" ")[0])
        condition = self._condition()
        match wanted.path.rstrip("/"):
            case "/live":
                return 200 if condition.live else 503, condition.summary()
            case "/ready":
                return 200 if condition.ready else 503, condition.summary()
            case "/scale" if self._scale is not None:
                return await self._answer_scale(self._scale, parse_qs(wanted.query))
        return 404, {"error": "there are /live, /ready and /scale?target=60"}

    async def _answer_scale(
        self, scale: Callable[[float], Awaitable[Scale]], query: Mapping[str, list[str]]
    ) -> tuple[int, dict[str, Any]]:
        target = query.get("target", [str(DEFAULT_TARGET)])[-1]
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                answer = await scale(float(target))
        except (InvalidCall, ValueError):
            return 400, {"error": f"target={target} is no number of seconds greater than 0"}
        except TimeoutError:
            return 503, {"error": f"the store has not answered within {ANSWERED_WITHIN:g} s"}
        except PerdureError as error:
            return 503, {"error": str(error)}
        return 200, asdict(answer)


def lives(file: str | os.PathLike[str], *, within: float = FRESH) -> bool:
    """Whether the worker that touches this file lives."""
    try:
        return time.time() - Path(file).stat().st_mtime <= within
    except OSError:
        return False
