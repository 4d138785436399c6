"""Addresses of stores on Redis and Valkey.

redis://user:password@host:6379/0?prefix=perdure      valkey:// alike
rediss://host/0?ca=/path/ca.pem&cert=…&key=…          TLS; valkeys:// alike
redis+unix:///run/redis.sock?db=0                     a socket on this machine
redis+sentinel://host1,host2:26379/primary/0          the primary that the Sentinels name
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from perdure.errors import StoreError

PREFIX = "perdure"
PORT, SENTINEL_PORT = 6379, 26379
_OPTIONS = ("prefix", "ca", "cert", "key", "db", "signals")
_FOR_TLS = ("ca", "cert", "key")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_EXAMPLE = "redis://localhost:6379/0, with a password redis://:password@host, with TLS rediss://host"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is. Passwords are in no text about it."""

    scheme: str
    host: str = "localhost"
    port: int = PORT
    database: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    socket: str | None = None
    tls: bool = False
    ca: str | None = None  # file of the certificate authority
    cert: str | None = None  # file of the client's own certificate, for servers that demand one
    key: str | None = None  # file of its key
    sentinels: tuple[tuple[str, int], ...] = ()  # they name the primary, and host and port mean nothing
    primary: str = ""  # its name, as the Sentinels know it
    prefix: str = PREFIX
    signals: bool = True  # whether workers are woken by PUBLISH

    def __str__(self) -> str:
        return f"{self.scheme}://{self._server()}?prefix={self.prefix}"

    def _server(self) -> str:
        if self.socket is not None:
            return self.socket
        if self.sentinels:
            return f"{','.join(_host_and_port(*each) for each in self.sentinels)}/{self.primary}/{self.database}"
        return f"{_host_and_port(self.host, self.port)}/{self.database}"

    @property
    def product(self) -> str:
        return "Valkey" if self.scheme.startswith("valkey") else "Redis"


def address_of(url: str) -> Address:
    """Check an address. StoreError says what is wrong with it, without repeating what may be a password."""
    scheme, _, rest = url.strip().partition(":")
    scheme = scheme.lower()
    if not rest.startswith("//"):
        raise StoreError(f"a Redis URL has two slashes behind the scheme: {_EXAMPLE}")
    by_sentinel = scheme.endswith("+sentinel")
    try:
        parts = urlsplit(f"x-{scheme.replace('+', '-')}:{rest}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        port = None if by_sentinel else parts.port
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
    if by_sentinel:
        return _by_sentinel(scheme, parts, options, shared)
    if scheme.endswith("+unix"):
        if not parts.path or parts.hostname:
            raise StoreError(f"a socket has three slashes: {scheme}:///run/redis.sock")
        return Address(scheme, socket=unquote(parts.path), database=_database(options.get("db", "0")), **shared)
    if "db" in options:
        raise StoreError("the number of the database stands in the path: redis://host:6379/2")
    tls = scheme in ("rediss", "valkeys")
    for name in _FOR_TLS:
        if name in options and not tls:
            raise StoreError(f"{name}= is for TLS: use rediss:// or valkeys://")
    return Address(
        scheme,
        host=parts.hostname or "localhost",
        port=PORT if port is None else port,
        database=_database(parts.path.strip("/") or "0"),
        tls=tls,
        ca=options.get("ca"),
        cert=options.get("cert"),
        key=options.get("key"),
        **shared,
    )


def _by_sentinel(scheme: str, parts: SplitResult, options: dict[str, str], shared: dict[str, Any]) -> Address:
    example = f"{scheme}://host1,host2:{SENTINEL_PORT}/primary/0"
    primary, _, database = unquote(parts.path).strip("/").partition("/")
    if not primary:
        raise StoreError(f"behind the Sentinels stands the name that they give the primary: {example}")
    for name in ("db", *_FOR_TLS):
        if name in options:
            raise StoreError(f"{name}= is not for Sentinels: {example}")
    sentinels = []
    for each in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{each}")
        try:
            sentinels.append((one.hostname or "localhost", SENTINEL_PORT if one.port is None else one.port))
        except ValueError:
            raise StoreError(f"these are no Sentinels; each is a host, or host:port: {example}") from None
    return Address(scheme, sentinels=tuple(sentinels), primary=primary, database=_database(database or "0"), **shared)


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
