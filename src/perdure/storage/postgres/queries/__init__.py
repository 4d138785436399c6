"""The store's statements. Each `.sql` file is a list of named queries, each with a line of purpose.

In them {schema} is the store's schema and {now} the instant: the server's clock, or a test's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from perdure.core.record import ROW_VERSION
from perdure.storage.sql_files import named

_WORD = re.compile(r"\{([a-z_]+)\}")
_WORDS = {
    "now": "coalesce(%(now)s::bigint, {clock})",
    "clock": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "row_version": str(ROW_VERSION),
}


# the clock of statements that are to agree on one instant: when their transaction began
ONE_INSTANT = "(extract(epoch FROM transaction_timestamp()) * 1000000)::bigint"


@cache
def load(name: str, schema: str, **parts: str) -> Mapping[str, str]:
    """The queries of `name`.sql by name. A query may hold others of its file by their names."""
    own = named(files(__package__), name)
    words = {**own, **_fragments(), **_WORDS, **parts, "schema": f'"{schema}"'}
    return {title: _fill(query, words) for title, query in own.items()}


def _fill(query: str, words: Mapping[str, str]) -> str:
    """The query with its {words} replaced, and the words in those, down to the last."""
    while (filled := _WORD.sub(lambda found: words.get(found[1], found[0]), query)) != query:
        query = filled
    return query


@cache
def _fragments() -> dict[str, str]:
    return named(files(__package__), "record")
