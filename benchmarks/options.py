"""Types of command-line arguments that the benchmarks share."""

import argparse
from collections.abc import Callable, Sequence


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Names with commas between them, each one of the known ones."""

    def chosen(text: str) -> list[str]:
        if unknown := [name for name in names(text) if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return list(names(text))

    return chosen
