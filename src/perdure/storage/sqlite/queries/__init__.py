"""The store's statements. Each `.sql` file is a list of named queries, each with a line of purpose.

A statement has either plain `?` and takes a sequence, or names (`:queue`) and takes a mapping: what it needs twice has a
name. Numbers (`?1`) are not used: Python 3.12 warns when they are bound from a sequence.
"""

from __future__ import annotations

from importlib.resources import files

from perdure.storage.sql_files import named


def load(name: str, **parts: str) -> dict[str, str]:
    """The queries of `name`.sql by name; {words} in them are replaced by the given parts."""
    return named(files(__package__), name, **parts)
