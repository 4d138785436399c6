"""The whole comparison: every design in every scenario, designs alternating, so that a disturbance hits all alike."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from servers import Server

from ..machine import load
from .catalogue import Design
from .results import SCENARIOS, Measurement, Results, Scenario
from .scenarios import Churned, backlog, churn, drain

SIZES = ((100, 1), (100, 3), (500, 1), (500, 2), (500, 3))  # batch, exchanges in flight
TUNED = ("in-place", "hot-history", "narrow-mark")  # what is churned again with tuned storage


@dataclass(frozen=True)
class Plan:
    """How much of everything. The long runs have one size: batches of 500, two exchanges in flight."""

    churned: int = 1_000_000
    waiting: int = 1_000_000
    drained: int = 50_000
    rounds: int = 2
    sizes: Sequence[tuple[int, int]] = SIZES
    long: tuple[int, int] = (500, 2)
    scenarios: Sequence[Scenario] = SCENARIOS


def run(server: Server, designs: Sequence[Design], plan: Plan, results: Results, tell: Callable[[str], None]) -> None:
    """Adds to the results as it goes; `tell` hears of each measurement."""
    for scenario in plan.scenarios:
        for measurement in _MEASURED[scenario](server, designs, plan):
            results.measurements.append(measurement)
            results.loads.append(load())
            tell(f"{time.strftime('%H:%M:%S')} {_line(measurement)}")


# ---- one function for each scenario ------------------------------------------------------------------------------------
def _drains(server: Server, designs: Sequence[Design], plan: Plan) -> Iterator[Measurement]:
    for _ in range(plan.rounds):
        for batch, in_flight in plan.sizes:
            for design in designs:
                drained = drain(server, design, jobs=plan.drained, batch=batch, in_flight=in_flight)
                yield Measurement("drain", design.name, plan.drained, batch, in_flight, asdict(drained))


def _backlogs(server: Server, designs: Sequence[Design], plan: Plan) -> Iterator[Measurement]:
    batch, in_flight = plan.long
    jobs = min(plan.waiting // 2, 2 * plan.drained)
    for design in designs:
        for waiting in (jobs, plan.waiting):  # the same with hardly any more than are taken, to compare with
            window = backlog(server, design, jobs=jobs, waiting=waiting, batch=batch, in_flight=in_flight)
            yield Measurement("backlog", design.name, waiting, batch, in_flight, asdict(window))


def _churns(server: Server, designs: Sequence[Design], plan: Plan) -> Iterator[Measurement]:
    return _churned("churn", server, designs, plan)


def _held(server: Server, designs: Sequence[Design], plan: Plan) -> Iterator[Measurement]:
    return _churned("held", server, designs, plan, held=True)


def _tuned(server: Server, designs: Sequence[Design], plan: Plan) -> Iterator[Measurement]:
    return _churned("tuned", server, [design for design in designs if design.name in TUNED], plan, tuned=True)


_MEASURED = {"drain": _drains, "backlog": _backlogs, "churn": _churns, "held": _held, "tuned": _tuned}


def _churned(
    scenario: Scenario, server: Server, designs: Sequence[Design], plan: Plan, **how: bool
) -> Iterator[Measurement]:
    batch, in_flight = plan.long
    for design in designs:
        churned = churn(server, design, jobs=plan.churned, batch=batch, in_flight=in_flight, **how)
        yield Measurement(scenario, design.name, plan.churned, batch, in_flight, _flat(churned))


def _flat(churned: Churned) -> dict[str, Any]:
    """With the first and the last window by name."""
    figures = asdict(churned)
    first, last = churned.windows[0], churned.windows[-1]
    ends = {"first": first.rate, "last": last.rate, "first_cpu": first.cpu, "last_cpu": last.cpu}
    return {**figures, **figures.pop("rot"), **ends}


def _line(measurement: Measurement) -> str:
    numbers = {name: value for name, value in measurement.figures.items() if isinstance(value, (int, float))}
    shown = ", ".join(f"{name} {value:,.0f}" for name, value in numbers.items())
    size = f"by {measurement.batch}, {measurement.in_flight} in flight"
    return f"{measurement.scenario} {measurement.design} {size}: {shown}"
