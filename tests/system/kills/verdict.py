"""What a campaign came to: the checker's findings, sorted by what they mean to a user, and what only this program knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.testing.checker import Entry, History, violations

from .program import NEVER_FAIL

# a finding belongs to the first kind whose pattern it matches; "other" takes the rest
KINDS = {
    "lost": r"not on record",
    "stuck": r"is still|still carries a hold|is stranded",
    "doubled": r"^I3|^I4|^I7|was released \d+ times|moved too often",
    "charged": r"^charged",
    "deaf": r"^deaf",
    "other": r"",
}


@dataclass
class Verdict:
    jobs: int
    attempts: int
    effects: int
    seconds: float
    findings: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @property
    def good(self) -> bool:
        return not any(self.findings.values())

    def counts(self) -> dict[str, int]:
        return {kind: len(found) for kind, found in self.findings.items()}


def judge(
    history: History, expected: Mapping[str, Any], deaf: Sequence[str], errors: Sequence[str], seconds: float
) -> Verdict:
    verdict = Verdict(len(history.rows), len(history.of_kind("began")), len(history.effects), round(seconds, 1))
    found = [
        *violations(history),
        *_moved_too_often(history),
        *_charged(history),
        *_unexpected(history, expected),
        *(f"deaf: {name} began nothing after the faults were over" for name in deaf),
        *errors,
    ]
    for finding in found:
        kind = next(kind for kind, pattern in KINDS.items() if re.search(pattern, finding))
        verdict.findings[kind].append(finding)
    return verdict


def _moved_too_often(history: History) -> Iterator[str]:
    """The version of a job says how often it moved: once when it was stored, once when it was released, two times for each
    claim, and once more for each failure if its retry had to wait. An end that was accepted twice is one move too many."""
    for row in history.rows:
        least = 1 + (row["after"] is not None) + 2 * row["attempt"]
        if row["state"] == "succeeded" and not least <= row["version"] <= least + row["failures"]:
            yield f"moved too often: {_named(row)} has version {row['version']}, its attempts account for {least}"


def _charged(history: History) -> Iterator[str]:
    """No fault of this campaign is a job's fault."""
    for row in history.rows:
        if row["task"] in NEVER_FAIL and row["failures"]:
            last = (json.loads(row["errors"] or "[]") or [None])[-1]
            yield f"charged: {_named(row)} has {row['failures']} failures, the last one: {str(last)[:300]}"
        if row["task"] == "fails_once" and row["failures"] > 1:
            yield f"charged: {_named(row)} failed {row['failures']} times and was to fail once"
        if row["state"] == "dead" and row["task"] != "gives_up":
            yield f"charged: {_named(row)} is a dead letter: {row['reason']}"


def _unexpected(history: History, expected: Mapping[str, Any]) -> Iterator[str]:
    results = {row["id"]: row["result"] for row in history.rows if row["state"] == "succeeded"}
    for id, wanted in expected.items():
        if id in results and (got := json.loads(results[id] or "null")) != wanted:
            yield f"{id} gave {got!r}, and {wanted!r} is right"


def _named(row: Entry) -> str:
    return f"{row['id']} ({row['task']})"
