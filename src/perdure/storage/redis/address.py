"""Addresses: redis://user:password@host:6379/0?prefix=perdure, rediss:// for TLS, valkey:// and valkeys:// alike, and
redis+unix:///run/redis.sock for a socket."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.errors import StoreError

SCHEMES = ("redis", "rediss", "valkey", "valkeys", "redis+unix", "valkey+unix")
PREFIX = "perdure"
PORT = 6379
_OPTIONS = ("prefix", "ca", "db", "signals")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_EXAMPLE = "redis://localhost:6379/0, with a password redis://:password@host, with TLS rediss://host"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is. What may be secret is in no text about it."""

    scheme: str
    host: str = "localhost"
    port: int = PORT
    database: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    socket: str | None = None
    tls: bool = False
    ca: str | None = None
    prefix: str = PREFIX
    signals: bool = True  # whether workers are woken by PUBLISH

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = self.socket if self.socket is not None else f"{host}:{self.port}/{self.database}"
        return f"{self.scheme}://{where}?prefix={self.prefix}"

    @property
    def product(self) -> str:
        return "Valkey" if self.scheme.startswith("valkey") else "Redis"


def address_of(url: str) -> Address:
    """Check an address. StoreError says what is wrong with it, without repeating what may be a password."""
    scheme, _, rest = url.strip().partition(":")
    scheme = scheme.lower()
    if not rest.startswith("//"):
        raise StoreError(f"a Redis URL has two slashes behind the scheme: {_EXAMPLE}")
    try:
        parts = urlsplit(f"x-{scheme.replace('+', '-')}:{rest}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        port = parts.port
    except ValueError:
        raise StoreError(f"this is no Redis URL; write special characters of a password as %XX: {_EXAMPLE}") from None
    if parts.fragment:
        raise StoreError("a Redis URL has no #; write %23 for a # in the password")
    _check_options(options)
    shared: dict[str, Any] = {
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "prefix": options.get("prefix", PREFIX),
        "signals": options.get("signals") != "off",
    }
    if scheme.endswith("+unix"):
        if not parts.path or parts.hostname:
            raise StoreError(f"a socket has three slashes: {scheme}:///run/redis.sock")
        return Address(scheme, socket=unquote(parts.path), database=_database(options.get("db", "0")), **shared)
    if "db" in options:
        raise StoreError("the number of the database stands in the path: redis://host:6379/2")
    tls = scheme in ("rediss", "valkeys")
    if "ca" in options and not tls:
        raise StoreError("ca= is for TLS: use rediss:// or valkeys://")
    return Address(
        scheme,
        host=parts.hostname or "localhost",
        port=PORT if port is None else port,
        database=_database(parts.path.strip("/") or "0"),
        tls=tls,
        ca=options.get("ca"),
        **shared,
    )


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise StoreError(f"a Redis database is a number, as in redis://localhost:6379/0, not {text[:40]!r}")
    return int(text)


def _check_options(options: dict[str, str]) -> None:
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_OPTIONS)}"
            raise StoreError(f"unknown option {name!r} of a Redis URL: {hint}")
    if options.get("signals", "on") not in ("on", "off"):
        raise StoreError(f"signals={options['signals'][:40]!r}: signals is on or off")
    prefix = options.get("prefix", PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise StoreError(f"prefix={prefix[:80]!r}: 1 to 64 letters, digits and _ . : - (no braces, no spaces)")
