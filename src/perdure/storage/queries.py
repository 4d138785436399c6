"""Named queries: an `.sql` file is a list of them, each with a line of purpose."""

from __future__ import annotations

from importlib.resources.abc import Traversable


def named(folder: Traversable, name: str, **parts: str) -> dict[str, str]:
    """The queries of `name`.sql by name; {words} in them are replaced by the given parts."""
    found = {}
    for block in (folder / f"{name}.sql").read_text("utf-8").split("-- name: ")[1:]:
        title, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        query = "\n".join(lines).strip().rstrip(";")
        for word, part in parts.items():
            query = query.replace("{" + word + "}", part)
        found[title.strip()] = query
    return found
