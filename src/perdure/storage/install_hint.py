"""Names the command that installs an extra of Perdure, for the way in which Perdure itself was installed.

For an installation by pipx or uv, or a clone, `pip install 'perdure[…]'` would be wrong: it would install another copy
elsewhere, or replace the clone.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME = "perdure"


def install_command(extra: str, *, installed: Distribution | None = None, prefix: Path | None = None) -> str:
    """The command, for a message. `installed` and `prefix` are what is found here, unless they are given."""
    prefix = prefix or Path(sys.prefix)
    if installed is None:
        try:
            installed = distribution(NAME)
        except PackageNotFoundError:  # it was put on the path by hand
            return f"pip install '{NAME}[{extra}]'"
    what, editable = _source(installed, extra)
    flag = "-e " if editable else ""
    installer = (installed.read_text("INSTALLER") or "").strip().lower()
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {flag and '--editable '}{what}"
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install {flag and '--editable '}{what}"
    if installer.startswith("poetry"):
        return f"poetry add {flag and '--editable '}{what}"
    if installer == "uv" and (prefix.parent / "uv.lock").exists():
        return f"uv add {flag and '--editable '}{what}"
    return f"{'uv pip' if installer == 'uv' else 'pip'} install {flag}{what}"


def _source(installed: Distribution, extra: str) -> tuple[str, bool]:
    """What is to be installed with the extra, and whether it is a clone that is used as it stands."""
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
        url = origin["url"]
    except (ValueError, KeyError, TypeError):  # it came from an index
        return shlex.quote(f"{NAME}[{extra}]"), False
    parts = urlsplit(url)
    if parts.scheme == "file":
        return shlex.quote(f"{unquote(parts.path)}[{extra}]"), bool(origin.get("dir_info", {}).get("editable"))
    version_control = origin.get("vcs_info", {}).get("vcs")
    return shlex.quote(f"{NAME}[{extra}] @ {version_control + '+' if version_control else ''}{url}"), False
