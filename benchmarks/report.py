"""Turns results into one Markdown page, printed and written to the docs alike."""

from collections.abc import Sequence

from .contender import BULK, Contender
from .machine import cores
from .results import Figure, Results, Spread
from .suite import Suite
from .tables import table, text_table

ABSENT = "–"


ONE_ROUND = "**One round only:** no spread is known, so small differences mean nothing."


def page(suite: Suite, results: Results) -> str:
    """The whole page; a part without content is left out."""
    contenders = [contender for contender in suite.contenders if contender.key in results.versions]
    throughput = [figure for figure in suite.figures if figure.unit == "jobs/s"]
    costs = [figure for figure in suite.figures if figure.unit != "jobs/s"]
    parts = [
        f"# Benchmark: {suite.title}",
        _introduction(suite, results),
        "## Throughput (jobs/s: median, lowest–highest)",
        _figures(throughput, contenders, results),
        "## Latency and cost (median, lowest–highest)",
        _figures(costs, contenders, results),
        *_ratios(suite, contenders, results),
        "## What each contender guarantees",
        _durability(contenders, results),
        *_raw(contenders, results),
        *_goals(suite, results),
        *_failures(results),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(suite: Suite, results: Results) -> str:
    plan = results.plan
    lines = [
        f"Written by `./dev bench {suite.name} --write-docs`. Machine: {'; '.join(results.machine)}.",
        f"Rounds: {plan['rounds']:.0f}, contenders alternating, every measurement in fresh processes on a fresh "
        "database. Payload 100 bytes, handlers do nothing. A drain counts only when every handler was called exactly "
        "once and every completion is stored. Its clock runs from the first handler call to the last stored "
        f"completion. Bulk calls carry {BULK:,} jobs. Pickup is the time from the enqueue call in one process to the "
        f"start of the handler in the idle worker of another, {plan['samples']:.0f} samples per round. "
        "Absolute figures depend on the machine: compare the ratios.",
        *([ONE_ROUND] if plan["rounds"] == 1 else []),
        *(remark.format(**plan) for remark in suite.remarks),
    ]
    if disturbed := results.disturbances(cores()):
        lines.insert(
            0, f"**This run was disturbed:** {'; '.join(disturbed)}. Its figures, ratios and goals are a hint at best."
        )
    if results.missing:
        absent = ", ".join(_missing(key, results) for key in results.missing)
        lines.append(f"Not measured in this run: {absent}.")
    return "\n\n".join(lines)


def _missing(key: str, results: Results) -> str:
    reason = results.reasons.get(key)
    return key if reason is None else f"{key} ({reason})"


def _figures(figures: Sequence[Figure], contenders: Sequence[type[Contender]], results: Results) -> str:
    head = ["", *(f"{figure.title}{_unit(figure)}" for figure in figures)]
    rows = [
        [contender.title, *(_cell(results.spread(figure.key, contender.key)) for figure in figures)]
        for contender in contenders
    ]
    return table(head, rows)


def _unit(figure: Figure) -> str:
    return "" if figure.unit == "jobs/s" else f", {figure.unit}"


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ABSENT
    if spread.rounds == 1:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.low)}–{_number(spread.high)})"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratios(suite: Suite, contenders: Sequence[type[Contender]], results: Results) -> list[str]:
    """One table for each form of Perdure in the run."""
    return [part for own in contenders if own.ours for part in _ratios_of(own, suite, contenders, results)]


def _ratios_of(
    own: type[Contender], suite: Suite, contenders: Sequence[type[Contender]], results: Results
) -> list[str]:
    others = [contender for contender in contenders if contender is not own]
    if not others:
        return []
    rows = [
        [other.title, *(_times(results.advantage(figure, own.key, other.key)) for figure in suite.figures)]
        for other in others
    ]
    return [
        f"## {own.title} against each contender (how many times faster, shorter or smaller; below 1 it is worse)",
        table(["", *(figure.title for figure in suite.figures)], rows),
    ]


def _times(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{_number(ratio)} ×"


def _durability(contenders: Sequence[type[Contender]], results: Results) -> str:
    head = ["", "version", "writes", "power loss", "kill -9 of the worker", "keeps", "settings", "jobs drained"]
    rows = [
        [
            contender.title,
            results.versions[contender.key],
            contender.durability.writes + _journal(contender, results),
            contender.durability.power_loss,
            contender.durability.worker_killed,
            contender.durability.keeps,
            contender.settings,
            f"{results.jobs[contender.key]:,}",
        ]
        for contender in contenders
    ]
    return text_table(head, rows)


def _journal(contender: type[Contender], results: Results) -> str:
    """For a contender that chooses its journal: what it chose here."""
    wal = results.median("wal", contender.key)
    return "" if wal is None else f": here {'WAL' if wal else 'a rollback journal'}"


def _raw(contenders: Sequence[type[Contender]], results: Results) -> list[str]:
    if not results.raw:
        return []
    own = [contender for contender in contenders if contender.ours]
    rows = [
        [label, _cell(results.raw_spread(label)), *(_share(results, contender, label) for contender in own)]
        for label in results.raw
    ]
    return [
        "## Raw limit (finish the last batch and claim the next in one transaction), and the drain's share of it",
        table(["driver, journal, batch", "jobs/s", *(contender.title for contender in own)], rows),
    ]


def _share(results: Results, contender: type[Contender], label: str) -> str:
    drain, raw = results.median("drain", contender.key), results.raw_spread(label)
    return ABSENT if drain is None or raw is None else f"{drain / raw.median:.0%}"


def _goals(suite: Suite, results: Results) -> list[str]:
    rows = [
        ["not measured" if goal.value is None else "met" if goal.met else "MISSED", goal.text, goal.shown]
        for goal in suite.goals(results)
    ]
    return ["## Goals", table(["", "goal", "measured"], rows)] if rows else []


def _failures(results: Results) -> list[str]:
    return ["## Failed", "\n".join(f"- {failure}" for failure in results.failures)] if results.failures else []
