"""The store's statements. Each `.sql` file is a list of named queries, each with a line of purpose."""

from __future__ import annotations

from importlib.resources import files
from typing import Any


def load(name: str, **parts: Any) -> dict[str, str]:
    """The queries of `name`.sql by name; {words} in them are replaced by the given parts."""
    text = (files(__package__) / f"{name}.sql").read_text("utf-8")
    found = {}
    for block in text.split("-- name: ")[1:]:
        title, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        query = "\n".join(lines).strip().rstrip(";")
        for word, part in parts.items():
            query = query.replace("{" + word + "}", part)
        found[title.strip()] = query
    return found
