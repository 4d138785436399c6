"""A whole run: rounds of measurements, contenders alternating."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from .contender import Contender
from .machine import load, machine_lines
from .measures import Measure, Plan, measures_for
from .results import Results
from .spawn import Failed, Spawner
from .suite import Suite

RAW = "raw limit"


def run(
    suite: Suite,
    plan: Plan,
    *,
    only: Sequence[str] = (),
    measured: Sequence[str] = (),
    tell: Callable[[str], None] = print,
) -> Results:
    """`only` names contenders, `measured` what is measured of them; without names, all."""
    contenders = suite.available(only)
    _known(suite, measured)
    with suite.opened() as fresh_place:
        results = _open_results(suite, plan, contenders, only)
        for key, reason in results.reasons.items():
            tell(f"{key} takes no part: {reason}")
        spawner = Spawner(suite, fresh_place)
        for number in range(plan.rounds):
            results.loads.append(load())
            tell(f"round {number + 1} of {plan.rounds}, load {results.loads[-1]:.1f}")
            if not measured or RAW in measured:
                _raw_limits(suite, spawner, plan, results, tell)
            for name, contender, measure in _in_turn(suite, _rotated(contenders, number)):
                if not measured or name in measured:
                    _one(spawner, contender, name, measure, plan, results, tell)
        results.loads.append(load())
    return results


def _open_results(suite: Suite, plan: Plan, contenders: Sequence[type[Contender]], only: Sequence[str]) -> Results:
    chosen = {contender.key for contender in contenders}
    wanted = set(only or suite.keys())
    return Results(
        suite=suite.name,
        machine=[*machine_lines(), *suite.machine()],
        plan=asdict(plan),
        versions={contender.key: contender.version() or "" for contender in contenders},
        missing=[contender.key for contender in suite.contenders if contender.key not in chosen],
        reasons={c.key: c.why_missing() for c in suite.contenders if c.key in wanted - chosen},
        jobs={contender.key: plan.drained(contender) for contender in contenders},
    )


def _known(suite: Suite, measured: Sequence[str]) -> None:
    known = list(dict.fromkeys([RAW, *(name for name, _, _ in _in_turn(suite, suite.contenders))]))
    unknown = sorted(set(measured) - set(known))
    if unknown:
        raise SystemExit(f"nothing is measured under {', '.join(unknown)}; there are: {', '.join(known)}")


def _in_turn(suite: Suite, order: Sequence[type[Contender]]) -> Iterator[tuple[str, type[Contender], Measure]]:
    """One measure of all contenders, then the next."""
    by_contender = {contender: {**measures_for(contender), **suite.measures(contender)} for contender in order}
    for name in dict.fromkeys(name for measures in by_contender.values() for name in measures):
        for contender, measures in by_contender.items():
            if name in measures:
                yield name, contender, measures[name]


def _one(
    spawner: Spawner,
    contender: type[Contender],
    name: str,
    measure: Measure,
    plan: Plan,
    results: Results,
    tell: Callable[[str], None],
) -> None:
    try:
        figures = measure(spawner, contender, plan)
    except Failed as error:
        results.failures.append(f"{name}: {error}")
        tell(f"  {name:<20} {contender.key:<16} failed: {error}")
        return
    results.add(contender.key, figures)
    tell(f"  {name:<20} {contender.key:<16} " + "  ".join(f"{key} {value:,.1f}" for key, value in figures.items()))


def _raw_limits(suite: Suite, spawner: Spawner, plan: Plan, results: Results, tell: Callable[[str], None]) -> None:
    for label in suite.raw_labels():
        rate = spawner.raw(label, plan.jobs)
        results.raw.setdefault(label, []).append(rate)
        tell(f"  {RAW:<20} {label:<28} {rate:,.0f}/s")


def _rotated(contenders: Sequence[type[Contender]], by: int) -> list[type[Contender]]:
    """Each round begins with another contender, so that nobody always runs on a warm or a tired machine."""
    cut = by % len(contenders) if contenders else 0
    return [*contenders[cut:], *contenders[:cut]]
