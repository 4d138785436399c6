"""What became of the mutations, as a table of fields."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .target import Mutation

ASIDE, TOLERATED, REFUSED, MISSING = "set aside", "tolerated", "refused by the database", "no row"
FATES = (ASIDE, TOLERATED, REFUSED, MISSING)


class Outcome(NamedTuple):
    mutation: Mutation
    fate: str


class Report:
    """Outcomes, how long canaries took, and the most attempts that one job had in a round."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.canaries: list[float] = []
        self.usual = 0.0
        self.most_attempts = 0

    def tables(self) -> set[str]:
        return {outcome.mutation.table for outcome in self.outcomes}

    def count(self, fate: str) -> int:
        return sum(outcome.fate == fate for outcome in self.outcomes)

    def table(self) -> str:
        """Field by outcome, and the sums."""
        counts: dict[str, Counter[str]] = {}
        for mutation, fate in self.outcomes:
            counts.setdefault(mutation.where, Counter())[fate] += 1
        width = max(map(len, counts), default=5)
        lines = [f"{'field':<{width}}  " + "  ".join(FATES)]
        for where in sorted(counts):
            lines.append(f"{where:<{width}}  " + "  ".join(f"{counts[where][fate]:>{len(fate)}}" for fate in FATES))
        lines.append(f"{'all':<{width}}  " + "  ".join(f"{self.count(fate):>{len(fate)}}" for fate in FATES))
        return "\n".join((*lines, self.summary()))

    def summary(self) -> str:
        slowest = max(self.canaries, default=0.0)
        return (
            f"{len(self.outcomes)} mutations of {len(self.tables())} tables; slowest canary {slowest:.2f} s, without bad "
            f"values {self.usual:.2f} s; at most {self.most_attempts} attempts of a job in a round"
        )
