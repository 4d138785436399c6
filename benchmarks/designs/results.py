"""What was measured: one entry per measurement, kept as plain data so that a report can be written again."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

Scenario = Literal["drain", "backlog", "churn", "held", "tuned"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)


@dataclass(frozen=True)
class Measurement:
    scenario: Scenario
    design: str
    jobs: int
    batch: int
    in_flight: int
    figures: dict[str, Any]


@dataclass
class Results:
    machine: list[str] = field(default_factory=list)
    server: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # after each measurement

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> "Results":
        data = json.loads(file.read_text())
        measurements = [Measurement(**entry) for entry in data["measurements"]]
        return cls(data["machine"], data["server"], measurements, data["loads"])

    def of(
        self, scenario: Scenario, design: str, batch: int | None = None, in_flight: int | None = None
    ) -> list[Measurement]:
        return [
            entry
            for entry in self.measurements
            if (entry.scenario, entry.design) == (scenario, design)
            and batch in (None, entry.batch)
            and in_flight in (None, entry.in_flight)
        ]

    def figure(
        self, name: str, scenario: Scenario, design: str, batch: int | None = None, in_flight: int | None = None
    ) -> float | None:
        """The median over the rounds, None if it was not measured."""
        return _median(entry.figures.get(name) for entry in self.of(scenario, design, batch, in_flight))

    def designs(self) -> list[str]:
        """In the order of the run."""
        return list(dict.fromkeys(entry.design for entry in self.measurements))


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None
