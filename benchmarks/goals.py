"""How a goal is put: a value, its bound, and whether it is met."""

from .suite import Goal


def at_least(text: str, value: float | None, bound: float, unit: str) -> Goal:
    return Goal(text, value, value is not None and value >= bound, _shown(value, unit))


def at_most(text: str, value: float | None, bound: float, unit: str) -> Goal:
    return Goal(text, value, value is not None and value <= bound, _shown(value, unit))


def ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"
