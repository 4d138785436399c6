"""The kinds of servers, and the two ways to have one: alone, or shared by all processes of a run."""

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
from .process import NotAvailable, Process, Program, announce, joined, launch


class Kind(Program, Protocol):
    """A program, how it is addressed, and the variable that names a server the user already has."""

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
    """A server to work with. `process` is None for one that the user already had, which is never stopped or killed."""

    def __init__(self, kind: type[Kind], url: str, process: Process | None, settings: Mapping[str, str]) -> None:
        self._kind = kind
        self._settings = dict(settings)
        self._fresh: list[str] = []
        self.url = url
        self.process = process

    def fresh(self) -> str:
        """The address of a schema, prefix or database that is empty and nobody else's."""
        self._fresh.append(f"perdure_test_{secrets.token_hex(6)}")
        return self._kind.fresh(self.url, self._fresh[-1])

    def kill(self) -> None:
        """End it, with all its processes, as kill -9 does."""
        self._own().kill()

    def freeze(self) -> None:
        """Stop it, with all its processes: connections stay, and nobody answers."""
        self._own().freeze()

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self._own().thaw()

    def halt(self) -> None:
        """End it in an orderly way; `restart` brings it back."""
        self._own().halt()

    def restart(self, **settings: str) -> None:
        """Start it again on the same data and port, with settings changed."""
        process = self._own()
        process.halt()
        self._settings |= settings
        process.run(process.port, self._settings)

    def stop(self, *, wait: bool = True) -> None:
        """Done with it: what was fresh is dropped, one's own server ended and its folder removed."""
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
    """A server of one's own. `durable` waits for the disk as the server does by default; `within` says where its data go;
    `never_theirs` starts one even if the user names another, for those who empty it."""
    if not never_theirs and (theirs := _theirs(name)):
        return theirs
    program = KINDS[name](durable=durable)
    folder = Path(tempfile.mkdtemp(prefix=f"perdure-{name}-", dir=within))
    process = launch(program, settings or {}, folder)
    return Server(CLASSES[name], CLASSES[name].url(process.port), process, settings or {})


def shared(name: str, folder: Path) -> Server:
    """The server of this kind for all who name this folder. Nobody may kill or restart it; the last user ends it."""
    if theirs := _theirs(name):
        return theirs
    program = KINDS[name](durable=False)
    place = folder / f"server-{name}"
    with _locked(folder / f"server-{name}.lock") as lock:
        if (place / "state").exists():
            process = joined(program, place)
        else:
            place.mkdir()
            process = launch(program, {}, place, lock)
            announce(process)
    return Server(CLASSES[name], CLASSES[name].url(process.port), process, {})


def scheme(name: str) -> str:
    """What the addresses of this kind begin with."""
    return CLASSES[name].scheme


def older_postgres() -> bool:
    """Whether there is a second version of PostgreSQL to test with."""
    return not os.environ.get(postgres.Postgres.variable) and postgres.older_binaries() is not None


def _theirs(name: str) -> Server | None:
    kind = CLASSES[name]
    url = os.environ.get(kind.variable)
    return Server(kind, url, None, {}) if url else None


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path
