"""The kinds of servers, and how to start one: private, or shared by all processes of a run."""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from . import mongo, postgres, redis
from .process import NotAvailable, Process, Program, announce, join, launch


class Kind(Program, Protocol):
    """A program, its URLs, and the environment variable that names an existing server."""

    scheme: str
    variable: str

    @staticmethod
    def url(port: int) -> str: ...

    @staticmethod
    def fresh(url: str, name: str) -> str: ...

    @staticmethod
    def drop(url: str, names: list[str]) -> None: ...


KINDS: dict[str, Callable[..., Kind]] = {
    "postgres": postgres.newest,
    "postgres-older": postgres.older,
    "valkey": redis.valkey,
    "redis": redis.redis,
    "mongo": mongo.mongo,
}
CLASSES: dict[str, type[Kind]] = {
    "postgres": postgres.Postgres,
    "postgres-older": postgres.Postgres,
    "valkey": redis.Redis,
    "redis": redis.Redis,
    "mongo": mongo.Mongo,
}


class Server:
    """A server to use. `process` is None for an existing server of the user, which is never stopped or killed."""

    def __init__(self, kind: type[Kind], url: str, process: Process | None, settings: Mapping[str, str]) -> None:
        self._kind = kind
        self._settings = dict(settings)
        self._fresh: list[str] = []
        self.url = url
        self.process = process

    def fresh(self) -> str:
        """The URL of a new, empty schema, prefix or database."""
        self._fresh.append(f"perdure_test_{secrets.token_hex(6)}")
        return self._kind.fresh(self.url, self._fresh[-1])

    def kill(self) -> None:
        """Kill all its processes with SIGKILL."""
        self._own().kill()

    def freeze(self) -> None:
        """Stop all its processes with SIGSTOP: connections stay open without answers."""
        self._own().freeze()

    def thaw(self) -> None:
        """Continue after `freeze`."""
        self._own().thaw()

    def halt(self) -> None:
        """Shut it down cleanly. `restart` starts it again."""
        self._own().halt()

    def restart(self, **settings: str) -> None:
        """Start it again on the same data and port, with changed settings."""
        process = self._own()
        process.halt()
        self._settings |= settings
        process.run(process.port, self._settings)

    def stop(self, *, wait: bool = True) -> None:
        """Drop what `fresh` made on a user's server; stop a server of ours and remove its folder."""
        if self.process is None:
            self._kind.drop(self.url, self._fresh)
            self._fresh.clear()
        else:
            self.process.close(wait=wait)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _own(self) -> Process:
        if self.process is None:
            raise NotAvailable(f"the server that {self._kind.variable} names is not ours to stop")
        return self.process


def start(
    name: str,
    *,
    durable: bool = False,
    within: Path | None = None,
    settings: Mapping[str, str] | None = None,
    never_theirs: bool = False,
) -> Server:
    """Start a private server. `durable` waits for the disk, as the server does by default. `within` is the folder for its
    data. `never_theirs` starts one even if the user names another, for tests that empty it."""
    if not never_theirs and (theirs := _theirs(name)):
        return theirs
    program = KINDS[name](durable=durable)
    folder = Path(tempfile.mkdtemp(prefix=f"perdure-{name}-", dir=within))
    process = launch(program, settings or {}, folder)
    return Server(CLASSES[name], CLASSES[name].url(process.port), process, settings or {})


def shared(name: str, folder: Path) -> Server:
    """The server that all processes with this folder share. None of them may kill or restart it; the last one stops it."""
    if theirs := _theirs(name):
        return theirs
    program = KINDS[name](durable=False)
    home = folder / f"server-{name}"
    with _lock(folder / f"server-{name}.lock") as lock:
        if (home / "state").exists():
            process = join(program, home)
        else:
            home.mkdir()
            process = launch(program, {}, home, lock)
            announce(process)
    return Server(CLASSES[name], CLASSES[name].url(process.port), process, {})


def scheme(name: str) -> str:
    """The scheme of this kind's URLs."""
    return CLASSES[name].scheme


def older_postgres() -> bool:
    """Whether there is a second version of PostgreSQL to test with."""
    return not os.environ.get(postgres.Postgres.variable) and postgres.older_binaries() is not None


def _theirs(name: str) -> Server | None:
    kind = CLASSES[name]
    url = os.environ.get(kind.variable)
    return Server(kind, url, None, {}) if url else None


@contextmanager
def _lock(path: Path) -> Iterator[Path]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path
