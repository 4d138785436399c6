"""Where a PostgreSQL store lives: a server's address and a schema in its database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from holdfast.errors import StoreError

SCHEMA = "holdfast"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_EXAMPLE = "postgresql://user@host/database, or postgresql://user@host/database?schema=jobs"
# libpq's own words that a URL may carry; anything else is a mistake
LIBPQ = frozenset(
    """
    application_name channel_binding client_encoding connect_timeout dbname gssencmode host hostaddr keepalives
    keepalives_count keepalives_idle keepalives_interval krbsrvname load_balance_hosts options passfile password port
    require_auth service sslcert sslcompression sslcrl sslkey sslmode sslnegotiation sslpassword sslrootcert
    target_session_attrs tcp_user_timeout user
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address. `dsn` is for the driver and may hold a password; the text of this object does not."""

    dsn: str = field(repr=False)
    schema: str
    shown: str

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What a connection is opened with, where the URL does not say it."""
        given = dict(parse_qsl(urlsplit(self.dsn).query))
        wanted: dict[str, Any] = {"connect_timeout": 10, "application_name": "holdfast"}
        return {name: value for name, value in wanted.items() if name not in given}

    def __str__(self) -> str:
        return self.shown


def address_of(url: str) -> Address:
    """Check a URL. StoreError says what is wrong with it; never with what may be a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise StoreError(f"this is no PostgreSQL URL; it looks like {_EXAMPLE}") from None
    if not url.startswith((f"{parts.scheme}://",)) or parts.fragment:
        raise StoreError(f"this is no PostgreSQL URL; it looks like {_EXAMPLE} (write %23 for a # in a password)")
    schema = options.pop("schema", SCHEMA)
    if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise StoreError(
            f"schema={schema!r} cannot be the schema of a store: lower-case letters, digits and _ (at most 48), "
            "no digit first, not pg_…"
        )
    for name in options:
        if name not in LIBPQ:
            raise StoreError(f"unknown option {name!r} of postgresql: known are schema and libpq's own (sslmode, …)")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options), ""))
    where = parts.hostname or options.get("host") or "localhost"
    place = f"{where}:{port}" if port else where
    database = unquote(parts.path.lstrip("/")) or options.get("dbname") or unquote(parts.username or "") or "postgres"
    return Address(dsn, schema, f"postgresql://{place}/{database} (schema {schema})")
