"""The tables of a run, as Markdown."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..machine import cores
from ..report import ONE_ROUND
from ..tables import table
from .plan import CASES, Case, Figure

BUSY = 1.5  # programs for each core, ours counted


@dataclass
class Results:
    machine: list[str]
    plan: dict[str, Any]
    samples: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)  # by case and store
    failures: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def _rounds(rounds: int) -> str:
    return "One round" if rounds == 1 else f"Medians of {rounds} rounds"


def report(results: Results) -> str:
    plan = results.plan
    parts = [
        "# The worker",
        f"Written by `./dev bench worker`. Machine: {'; '.join(results.machine)}. "
        f"{_rounds(plan['rounds'])}, every "
        "case in a process of its own, servers on the same machine.",
        *([ONE_ROUND] if plan["rounds"] == 1 else []),
        f"{plan['io_jobs']:,} jobs that wait, {plan['cpu_jobs']:,} that compute for {1000 * plan['cpu_seconds']:.0f} ms, "
        f"{plan['arriving']:,} a second that arrive for {plan['arriving_for']:.0f} s, {plan['held']:,} held for "
        f"{plan['held_for']:.0f} s under a lease of {plan['held_lease']:.1f} s, {plan['drained_jobs']:,} drained with and "
        f"without an option, {plan['limited_jobs']:,} under a limit of 25, "
        f"{plan['stuck_jobs']:,} that wait for their limit, {plan['large_tenant']:,} of one tenant in a fair queue.",
        *_disturbed(results),
        *(part for case in CASES for part in _part(results, case)),
        *([f"Failed: {'; '.join(results.failures)}."] if results.failures else []),
    ]
    return "\n\n".join(parts) + "\n"


def _part(results: Results, case: Case) -> list[str]:
    by_store = results.samples.get(case.name)
    if not by_store:
        return []
    rows = [
        [store, *(_shown(figure, [sample[figure.key] for sample in samples]) for figure in case.figures)]
        for store, samples in by_store.items()
    ]
    return [f"## {case.title}", case.text, table(["store", *(figure.title for figure in case.figures)], rows)]


def _shown(figure: Figure, values: list[float]) -> str:
    return f"{median(values):,.{figure.digits}f}"


def _disturbed(results: Results) -> list[str]:
    if not results.loads or median(results.loads) <= BUSY * cores():
        return []
    return [f"**This run was disturbed:** up to {max(results.loads):.0f} programs wanted {cores()} cores."]
