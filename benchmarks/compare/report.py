"""The page of a run: a table for each store."""

from collections.abc import Sequence

from ..machine import cores
from ..tables import table
from .measures import MEASURES
from .pairs import CONFIDENCE, FEWEST, Pairs, confidence
from .run import Results

HEAD = ("figure", "A", "B", "B/A", "quartiles", "min–max", "verdict")
BUSY = 1.5  # programs for each core


def page(results: Results, machine: Sequence[str], measures: Sequence[str]) -> str:
    parts = [
        "# Two checkouts side by side",
        f"A: {results.sides['A']}. B: {results.sides['B']}. Machine: {'; '.join(machine)}.",
        _how_to_read(results.rounds),
        *_disturbed(results),
        "\n".join(f"- {name}: {MEASURES[name].text}" for name in measures),
    ]
    for store, by_figure in results.pairs.items():
        parts += [
            f"## {store}, {results.jobs[store]:,} jobs",
            table(HEAD, [_row(pairs) for pairs in by_figure.values()]),
        ]
    if results.skipped:
        parts += ["## Skipped", "\n".join(f"- {store}: {why}" for store, why in results.skipped.items())]
    if results.failures:
        parts += ["## Failed", "\n".join(f"- {failure}" for failure in results.failures)]
    return "\n\n".join(parts) + "\n"


def _how_to_read(rounds: int) -> str:
    text = (
        "A and B are medians; B/A is the median of the ratios within the pairs, followed by the spread of these ratios. "
        "Rates and times are wall clock. CPU is that of the worker and of the process that enqueues; the server's stands "
        "in a row of its own. The verdict compares the interval of the median of the ratios with 1."
    )
    if rounds < FEWEST:
        return f"{text} A difference takes {FEWEST} pairs or more to be called one."
    likely = confidence(rounds)
    few = " Take six pairs or more for a verdict to rely on." if likely < CONFIDENCE else ""
    wrong = f"With {rounds} pairs, about one row in {1 / (1 - likely):.0f} shows a difference where there is none."
    return f"{text} {wrong}{few}"


def _disturbed(results: Results) -> list[str]:
    if max(results.loads, default=0.0) <= BUSY * cores():
        return []
    return [f"**This run was disturbed:** the load reached {max(results.loads):.1f} on {cores()} cores."]


def _row(pairs: Pairs) -> list[str]:
    summary = pairs.summary()
    return [
        f"{pairs.figure.title}, {pairs.figure.unit}",
        _number(summary.a),
        _number(summary.b),
        "–" if summary.ratio is None else f"{summary.ratio:.3f}",
        _span(summary.quartiles),
        _span(summary.extremes),
        summary.verdict,
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _span(ends: tuple[float, float] | None) -> str:
    return "–" if ends is None else f"{ends[0]:.3f}–{ends[1]:.3f}"
