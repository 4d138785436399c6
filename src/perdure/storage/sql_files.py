"""Named queries: an `.sql` file is a list of them, each with a line of purpose."""

from __future__ import annotations

from importlib.resources.abc import Traversable

_texts: dict[tuple[str, str], str] = {}  # of files that were read: what is asked for later needs no file any more


def _text(folder: Traversable, name: str) -> str:
    key = (str(folder), name)
    if key not in _texts:
        files = [file for file in folder.iterdir() if file.name.endswith(".sql")]
        _texts.update({(str(folder), file.name): file.read_text("utf-8") for file in files})
    return _texts[key]


def named(folder: Traversable, name: str, **parts: str) -> dict[str, str]:
    """The queries of `name`.sql by name; {words} in them are replaced by the given parts."""
    found = {}
    for block in _text(folder, f"{name}.sql").split("-- name: ")[1:]:
        title, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        query = "\n".join(lines).strip().rstrip(";")
        for word, part in parts.items():
            query = query.replace("{" + word + "}", part)
        found[title.strip()] = query
    return found
