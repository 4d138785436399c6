"""Aligned Markdown tables: readable in a terminal and in the docs alike."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text and stands left, the others are figures and stand right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join([_line(head, widths), _rule(widths), *(_line(row, widths) for row in rows)])


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Words only: no padding, because long cells would make every line as long as the longest."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return (
        "| "
        + " | ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])
        + " |"
    )


def _rule(widths: Sequence[int]) -> str:
    return "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
