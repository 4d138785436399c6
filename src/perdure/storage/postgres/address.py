"""The address of a PostgreSQL store: a server, a database and a schema in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from perdure.errors import StoreError

SCHEMA = "perdure"
CONNECT_WITHIN = 5  # seconds
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@]*)(:\d{1,5})?")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_EXAMPLE = "postgresql://user@host/database, or postgresql://user@host/database?schema=jobs"
OURS: Mapping[str, tuple[str, ...]] = {"signals": ("on", "off"), "pooler": ("auto", "on", "off")}
# libpq's own words that a URL may carry; anything else is a mistake
LIBPQ = frozenset(
    """
    application_name channel_binding connect_timeout dbname gssencmode host hostaddr keepalives keepalives_count
    keepalives_idle keepalives_interval krbsrvname load_balance_hosts options passfile password port require_auth service
    sslcert sslcompression sslcrl sslkey sslmode sslnegotiation sslpassword sslrootcert target_session_attrs
    tcp_user_timeout user
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address. `dsn` is for the driver and may hold a password; the text of this object does not.

    `signals`: whether workers are woken by NOTIFY. `pooler`: whether somebody stands between us and the server; "auto"
    finds out."""

    dsn: str = field(repr=False)
    schema: str
    shown: str
    signals: bool = True
    pooler: Literal["auto", "on", "off"] = "auto"

    @property
    def given(self) -> dict[str, str]:
        """libpq's options in the URL."""
        return dict(parse_qsl(urlsplit(self.dsn).query))

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What a connection is opened with, where the URL does not say it: a peer that is gone is noticed in a minute."""
        given = self.given
        wanted: dict[str, Any] = {
            "connect_timeout": CONNECT_WITHIN,
            "application_name": "perdure",
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        }
        return {"client_encoding": "UTF8", **{name: value for name, value in wanted.items() if name not in given}}

    def __str__(self) -> str:
        return self.shown


def address_of(url: str) -> Address:
    """Check a URL. StoreError says what is wrong with it; never with what may be a password."""
    parts, options = _split(url)
    own = {name: options.pop(name) for name in OURS if name in options}
    schema = options.pop("schema", SCHEMA)
    if not _NAME.fullmatch(schema) or schema.startswith("pg_") or schema == "information_schema":
        raise StoreError(
            f"schema={schema!r} cannot be the schema of a store: lower-case letters, digits and _ (at most 48), "
            "no digit first, not one of PostgreSQL's own"
        )
    for name in options:
        if name not in LIBPQ:
            known = ["schema", *OURS, *LIBPQ]
            near = get_close_matches(name, known, 1)
            hint = (
                f"did you mean {near[0]}?" if near else "known are schema, signals, pooler and libpq's own (sslmode, …)"
            )
            raise StoreError(f"unknown option {name!r} of postgresql: {hint}")
    for name, value in own.items():
        if value not in OURS[name]:
            raise StoreError(f"option {name} of postgresql is one of {', '.join(OURS[name])}, not {value!r}")
    dsn = f"postgresql://{parts.netloc}{parts.path}?{urlencode(options, quote_via=quote)}"
    where = parts.netloc.rpartition("@")[2] or options.get("host") or "localhost"
    user = unquote((parts.username or "").partition(":")[0])
    database = unquote(parts.path.lstrip("/")) or options.get("dbname") or user or "postgres"
    shown = f"postgresql://{where}/{database} (schema {schema})"
    pooler: Literal["auto", "on", "off"] = own.get("pooler", "auto")  # type: ignore[assignment]  # looked up in OURS
    return Address(dsn, schema, shown, own.get("signals") != "off", pooler)


def _split(url: str) -> tuple[SplitResult, dict[str, str]]:
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise StoreError(f"this is no PostgreSQL URL; it looks like {_EXAMPLE}") from None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if not url.startswith(f"{parts.scheme}://") or parts.fragment or not all(map(_HOST.fullmatch, hosts)):
        raise StoreError(
            f"this is no PostgreSQL URL; it looks like {_EXAMPLE} "
            "(in a password write %23 for #, %2F for /, %3A for :, %40 for @)"
        )
    if _STRAY_PERCENT.search(parts.netloc + parts.path):
        raise StoreError("a % in a PostgreSQL URL begins a coded character; write %25 for a % in a password")
    return parts, options
