"""Addresses of stores: `memory://`, `sqlite:///jobs.db`, `sqlite:////var/lib/jobs.db`, `sqlite+apsw:///jobs.db`,
`postgresql://user@host/database?schema=perdure`, `redis://host:6379/0?prefix=perdure`.

A store on a server is a package with two modules: `address`, whose `address_of(url)` checks the URL without its driver, and
`factory`, which has `storage(address, clock=, demand=, migrate=)` and `open_ledger(address)`.

No driver is imported before a store is made. A message never repeats what may hold a password.
"""

from __future__ import annotations

import difflib
import unicodedata
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.core.clock import Clock
from perdure.errors import StoreError, StoreMisconfigured
from perdure.storage.contract import Storage
from perdure.storage.install_hint import install_command
from perdure.storage.opening import Demand

if TYPE_CHECKING:
    from perdure.storage.migrations import Ledger, Migration
    from perdure.storage.outbox import Outbox

Opener = Callable[[], Storage]

SERVERS = {  # scheme: package, which is also the name of its extra
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "redis+unix": "redis",
    "redis+sentinel": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "valkey+unix": "redis",
    "valkey+sentinel": "redis",
    "mongodb": "mongo",
    "mongodb+srv": "mongo",
}
SCHEMES = ("memory", "sqlite", "sqlite+apsw", *SERVERS)
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "memory": {},
    "sqlite": {"journal": ("auto", "wal", "persist", "truncate"), "signals": ("on", "off")},
    "sqlite+apsw": {"journal": ("auto", "wal", "persist", "truncate"), "signals": ("on", "off")},
}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A checked address. `path` is the file of a SQLite store, None for one in memory; `server` the address of a store on a
    server, as its package understands it."""

    scheme: str
    path: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    server: Any = None

    def __str__(self) -> str:
        if self.server is not None:
            return str(self.server)
        if self.scheme == "memory":
            return "memory://"
        return f"{self.scheme}:///{':memory:' if self.path is None else self.path}"


def parse(url: str) -> StoreUrl:
    """Check an address. StoreError says what is wrong with it and what it should look like."""
    if not isinstance(url, str):
        raise StoreError(f"a store's URL is a text such as sqlite:///jobs.db, not {type(url).__name__}")
    scheme, colon, _ = url.strip().partition(":")
    scheme = scheme.lower()
    if not colon or "/" in scheme:
        raise StoreError(
            "a store's URL begins with a scheme: sqlite:///jobs.db for a file, postgresql://, redis:// or mongodb:// and a "
            "host for a server, memory:// for tests"
        )
    if scheme not in SCHEMES:
        raise StoreError(f"unknown store {scheme!r}: {_meant(scheme)}")
    _refuse_control_characters(url.strip())
    if scheme in SERVERS:
        return StoreUrl(scheme, server=_module(scheme, "address").address_of(url.strip()))
    return _memory(url) if scheme == "memory" else _sqlite(scheme, url.strip())


def _refuse_control_characters(url: str) -> None:
    """A line break in a name is a mistake, and would break the lines of logs and of configurations. A password may have
    one, if it is coded."""
    authority, slash, rest = url.partition("://")[2].partition("/")
    names = unquote(authority.rpartition("@")[2] + slash + rest)
    if any(unicodedata.category(character) == "Cc" for character in url + names):
        raise StoreMisconfigured("a store's URL holds a line break, a NUL or another control character: leave it out")


def _meant(scheme: str) -> str:
    """What an unknown scheme was probably meant to be. SQLAlchemy's name a driver: sqlite+aiosqlite."""
    store, _, driver = scheme.partition("+")
    if driver and store in SCHEMES:
        kinds = [known.removeprefix(f"{store}+") for known in SCHEMES if known.startswith(f"{store}+")]
        if kind := difflib.get_close_matches(driver, kinds, 1):
            return f"did you mean {store}+{kind[0]}://?"
        return f"Perdure chooses the driver itself, write {store}{':///' if store == 'sqlite' else '://'}"
    near = difflib.get_close_matches(scheme, SCHEMES, 1)
    return f"did you mean {near[0]}://?" if near else f"known are {', '.join(SCHEMES)}"


def opener(url: str, *, clock: Clock | None = None, durability: Demand = "normal", migrate: bool = True) -> Opener:
    """A function that makes the store for one event loop. All it makes share one file, or one memory."""
    address = parse(url)
    if durability not in ("full", "normal", "relaxed"):
        raise StoreError(f'durability must be "full", "normal" or "relaxed", not {durability!r}')
    if address.scheme == "memory":
        return _memory_opener(clock)
    if address.server is not None:
        factory = _factory(address.scheme)
        return partial(factory.storage, address.server, clock=clock, demand=durability, migrate=migrate)
    return _SqliteOpener(address, clock, durability, migrate)


def ledger(url: str) -> tuple[Ledger, list[Migration], Callable[[], None]]:
    """Where a store notes its migrations, those there are, and what closes it: for `perdure migrate`."""
    address = parse(url)
    if address.server is not None:
        opened: tuple[Ledger, list[Migration], Callable[[], None]] = _factory(address.scheme).open_ledger(
            address.server
        )
        return opened
    if address.path is None:
        raise StoreError(f"{address} keeps nothing: there is nothing to migrate")
    from perdure.storage.sqlite.factory import open_ledger

    return open_ledger(address.path, address.scheme, address.options.get("journal", "auto"))


# ---- outboxes --------------------------------------------------------------------------------------
OUTBOXES = ("sqlite", "sqlite+apsw", "postgresql", "postgres")


def outbox_opener(url: str, *, clock: Clock | None = None, migrate: bool = True) -> Callable[[], Outbox]:
    """A function that makes the outbox for one event loop."""
    address = _outbox_address(url)
    if address.server is not None:
        return partial(_factory(address.scheme).outbox, address.server, clock=clock, migrate=migrate)
    from perdure.storage.sqlite import factory

    path = address.path.absolute()  # a later change of directory must not lead to another file
    return partial(factory.outbox, path, address.scheme, clock=clock, migrate=migrate)


def outbox_ledger(url: str) -> tuple[Ledger, list[Migration], Callable[[], None]]:
    """The same as `ledger`, for the outbox at this address."""
    address = _outbox_address(url)
    if address.server is not None:
        opened: tuple[Ledger, list[Migration], Callable[[], None]]
        opened = _factory(address.scheme).open_outbox_ledger(address.server)
        return opened
    from perdure.storage.sqlite.factory import open_ledger

    return open_ledger(address.path, address.scheme, "as it is", outbox=True)


def _outbox_address(url: str) -> Any:
    address = parse(url)
    if address.scheme not in OUTBOXES or (address.server is None and address.path is None):
        raise StoreError(
            f"{address} cannot hold an outbox: it is a table in a database that callers have transactions in, a file of "
            "SQLite (sqlite:///shop.db) or PostgreSQL (postgresql://user@host/database)"
        )
    return address


# ---- stores by scheme ------------------------------------------------------------------------------
def _factory(scheme: str) -> Any:
    try:
        return _module(scheme, "factory")
    except ImportError as missing:
        extra = SERVERS[scheme]
        raise StoreError(
            f"{scheme}:// needs a library that is not installed ({missing.name}): {install_command(extra)}"
        ) from None


def _module(scheme: str, name: str) -> Any:
    return import_module(f"perdure.storage.{SERVERS[scheme]}.{name}")


def _memory_opener(clock: Clock | None) -> Opener:
    from perdure.storage.memory.store import MemoryStorage

    store = MemoryStorage(clock)
    return lambda: store


class _SqliteOpener:
    """Makes stores of one SQLite database. One in memory lives as long as its opener."""

    def __init__(self, address: StoreUrl, clock: Clock | None, durability: Demand, migrate: bool) -> None:
        # a later change of directory must not lead to another file
        self._path = None if address.path is None else address.path.absolute()
        self._scheme = address.scheme
        self._journal = address.options.get("journal", "auto")
        self._signals = address.options.get("signals") != "off"
        self._clock = clock
        self._durability = durability
        self._migrate = migrate
        self._key = f":memory:{uuid.uuid4()}" if self._path is None else None
        self._kept = False

    def __call__(self) -> Storage:
        from perdure.storage.sqlite import factory

        if self._key is not None and not self._kept:
            weakref.finalize(self, factory.keep(self._key, self._scheme))
            self._kept = True
        return factory.storage(
            self._path,
            self._scheme,
            signals=self._signals,
            journal=self._journal,
            clock=self._clock,
            demand=self._durability,
            migrate=self._migrate,
            key=self._key,
        )


def _memory(url: str) -> StoreUrl:
    rest = url.strip()[len("memory:") :]
    if rest not in ("", "//", "///"):
        raise StoreError("memory:// takes nothing behind it: it is one store per app, in this process")
    return StoreUrl("memory")


def _sqlite(scheme: str, url: str) -> StoreUrl:
    rest = url[len(scheme) + 1 :]
    example = f"{scheme}:///jobs.db for a file here, {scheme}:////var/lib/jobs.db for an absolute path"
    if not rest.startswith("///"):
        bare = rest.lstrip("/").partition("?")[0] or ":memory:"
        slashes = "two slashes are" if rest.startswith("//") else "one slash is" if rest.startswith("/") else "none is"
        hint = f"{scheme}:///{bare}" if "@" not in bare else example
        raise StoreError(f"a SQLite URL has three slashes before the path, {slashes} too few: did you mean {hint}?")
    try:
        parts = urlsplit(f"{scheme.replace('+', '-')}:{rest}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise StoreError(f"the options of a SQLite URL look like ?journal=auto; {example}") from None
    if parts.fragment:
        raise StoreError("a SQLite URL has no #; write %23 for a # in the path")
    _check_options(scheme, options)
    path = unquote(parts.path[1:])
    if path == ":memory:":
        return StoreUrl(scheme, None, options)
    if not path or path.endswith("/"):
        raise StoreError(f"a SQLite URL names a file: {example}")
    if "\x00" in path:
        raise StoreError("a path cannot hold a NUL character")
    return StoreUrl(scheme, Path(path).expanduser() if path.startswith("~/") else Path(path), options)


def _check_options(scheme: str, options: Mapping[str, str]) -> None:
    known = OPTIONS[scheme]
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise StoreError(f"unknown option {name!r} of {scheme}: {hint}")
        if value not in known[name]:
            raise StoreError(f"option {name} of {scheme} is one of {', '.join(known[name])}, not {value!r}")
