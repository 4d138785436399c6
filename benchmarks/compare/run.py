"""A whole run: pairs of short measurements, in the order A B, B A, A B …"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import servers

from ..machine import load
from ..measures import Figures, Plan
from ..spawn import Failed, Spawner
from .measures import MEASURES
from .pairs import Pairs
from .sides import Side
from .stores import JOBS, STORES, Store

Tell = Callable[[str], None]


@dataclass
class Results:
    sides: dict[str, str]
    rounds: int
    jobs: dict[str, int] = field(default_factory=dict)  # by store
    pairs: dict[str, dict[str, Pairs]] = field(default_factory=dict)  # by store and figure
    skipped: dict[str, str] = field(default_factory=dict)  # stores that are not here, and why
    failures: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def add(self, store: str, measure: str, a: Figures, b: Figures) -> None:
        by_figure = self.pairs.setdefault(store, {})
        for figure in MEASURES[measure].figures:
            if figure.key in a and figure.key in b:
                by_figure.setdefault(figure.key, Pairs(figure)).samples.append((a[figure.key], b[figure.key]))

    def as_dict(self) -> dict[str, Any]:
        return {
            **vars(self),
            "pairs": {
                store: {
                    key: {"unit": pairs.figure.unit, "samples": pairs.samples, **pairs.summary().as_dict()}
                    for key, pairs in by_figure.items()
                }
                for store, by_figure in self.pairs.items()
            },
        }


@dataclass(frozen=True)
class Sizes:
    """`jobs` None: as many as take a few seconds on each store."""

    rounds: int
    samples: int
    jobs: int | None = None

    def plan(self, store: str) -> Plan:
        return Plan(rounds=self.rounds, jobs=self.jobs or JOBS[store], samples=self.samples)


def run(sides: tuple[Side, Side], stores: Sequence[str], measures: Sequence[str], sizes: Sizes, tell: Tell) -> Results:
    results = Results({side.letter: side.title for side in sides}, sizes.rounds)
    for name in stores:
        store, plan = STORES[name](), sizes.plan(name)
        try:
            _require(store)
            with store.suite.opened() as fresh_place:
                spawners = {
                    side.letter: Spawner(store.suite, fresh_place, environment=side.environment) for side in sides
                }
                results.jobs[name] = plan.jobs
                _measure(name, store, spawners, measures, plan, results, tell)
        except servers.NotAvailable as missing:
            results.skipped[name] = str(missing)
            tell(f"{name} is skipped: {missing}")
    results.loads.append(load())
    return results


def _require(store: Store) -> None:
    if store.contender.version() is None:
        raise servers.NotAvailable(store.contender.why_missing())


def _measure(
    name: str,
    store: Store,
    spawners: dict[str, Spawner],
    measures: Sequence[str],
    plan: Plan,
    results: Results,
    tell: Tell,
) -> None:
    for number in range(plan.rounds):
        results.loads.append(load())
        tell(f"{name}: pair {number + 1} of {plan.rounds}, load {results.loads[-1]:.1f}")
        for measure in measures:
            figures: dict[str, Figures] = {}
            for letter in "AB" if number % 2 == 0 else "BA":
                try:
                    figures[letter] = MEASURES[measure].run(spawners[letter], store.contender, plan)
                except Failed as error:
                    results.failures.append(f"{measure} of side {letter} on {name}: {error}")
                    tell(f"  {measure:<8} {letter}  failed: {error}")
                else:
                    tell(f"  {measure:<8} {letter}  {_shown(measure, figures[letter])}")
            if len(figures) == len(spawners):
                results.add(name, measure, figures["A"], figures["B"])


def _shown(measure: str, figures: Figures) -> str:
    found = [figure for figure in MEASURES[measure].figures if figure.key in figures]
    return "  ".join(f"{figure.title} {figures[figure.key]:,.1f} {figure.unit}" for figure in found)
