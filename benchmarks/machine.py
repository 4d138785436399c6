"""One line about the machine: enough to judge the figures, nothing that identifies it."""

import os
import platform
import subprocess
import tempfile
from pathlib import Path


def machine_lines() -> list[str]:
    return [
        f"{cores()} cores ({platform.machine()}), {platform.system()}, load {load():.1f} at the start",
        f"Python {platform.python_version()} ({platform.python_implementation()})",
        f"temporary files on {file_system(Path(tempfile.gettempdir()))}",
        *commit_lines(),
    ]


def commit_lines() -> list[str]:
    """The commit that is measured, so that a page says of which code its figures are; nothing outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=, with changes"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [f"commit {described}"]


def worked() -> tuple[float, float] | None:
    """How long all cores together have worked so far, and how long they could have, in ticks; None where nobody counts."""
    counts = Path("/proc/stat")
    if not counts.exists():
        return None
    user, nice, system, idle, iowait, *rest = map(int, counts.read_text().splitlines()[0].split()[1:9])
    busy = user + nice + system + sum(rest)
    return float(busy), float(busy + idle + iowait)


def load() -> float:
    """Processes that want a core, over the last minute; 0 where nobody counts them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def cores() -> int:
    return os.cpu_count() or 1


def file_system(path: Path) -> str:
    """Type of the file system that holds the path, by the longest mount point above it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "an unknown file system"
    found = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    above = [(point, kind) for point, kind in found if path.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else "an unknown file system"
