"""The table of a campaign, as text and as JSON that the documentation can quote."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .campaign import FILES, Done
from .verdict import Verdict

COLUMNS = (
    "store", "kills", "server kills", "zombies", "stale holds", "jobs", "attempts", "effects", "lost", "stuck", "doubled",
    "charged", "deaf", "other",
)  # fmt: skip


def row_of(store: str, done: Done, verdict: Verdict) -> dict[str, Any]:
    return {
        "store": store,
        "kills": done.kills,
        "server kills": done.server_kills,
        "zombies": done.zombies,
        "stale holds": done.stale_holds,
        "jobs": verdict.jobs,
        "attempts": verdict.attempts,
        "effects": verdict.effects,
        **verdict.counts(),
    }


def table_of(row: dict[str, Any]) -> str:
    cells = [f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in COLUMNS]
    widths = [max(len(name), len(cell)) for name, cell in zip(COLUMNS, cells, strict=True)]

    def line(parts: tuple[str, ...] | list[str]) -> str:
        return "| " + " | ".join(part.rjust(width) for part, width in zip(parts, widths, strict=True)) + " |"

    return "\n".join([line(COLUMNS), "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", line(cells)])


def text_of(row: dict[str, Any], done: Done, verdict: Verdict) -> str:
    lines = [table_of(row), ""]
    lines.append(
        f"killed: {done.runners_killed} runners, {done.supervisors_killed} supervisors, {done.workers_killed} whole "
        f"workers; {verdict.seconds:,.0f} seconds"
    )
    if row["store"] in FILES and done.server_kills:
        lines.append("server kills: a file has no server; all workers were killed at once instead")
    for kind, found in verdict.findings.items():
        lines += [f"{kind}: {finding}" for finding in found[:20]]
        lines += [f"{kind}: … and {len(found) - 20} more"] if len(found) > 20 else []
    return "\n".join(lines)


def write_json(path: Path, row: dict[str, Any], done: Done, verdict: Verdict, command: str, seed: int) -> None:
    told = {
        **row,
        "runners killed": done.runners_killed,
        "supervisors killed": done.supervisors_killed,
        "whole workers killed": done.workers_killed,
        "seconds": verdict.seconds,
        "command": command,
        "seed": seed,
        "rounds": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "perdure": version("perdure"),
        "python": platform.python_version(),
        "findings": {kind: found[:50] for kind, found in verdict.findings.items() if found},
    }
    path.write_text(json.dumps(told, indent=2) + "\n")
