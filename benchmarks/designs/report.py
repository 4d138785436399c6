"""The tables of a comparison, as Markdown."""

from collections.abc import Sequence
from statistics import median

from ..machine import cores
from ..tables import table
from .catalogue import design_named
from .results import Measurement, Results, Scenario

BEGIN, END = "<!-- designs: begin -->", "<!-- designs: end -->"
ABSENT = "–"
BUSY = 1.5  # programs for each core, ours counted
Row = list[str]


def report(results: Results) -> str:
    """All tables; one without figures is left out."""
    parts = [
        f"Written by `python -m benchmarks.designs`. Machine: {'; '.join(results.machine)}. Server: {results.server}.",
        *_disturbed(results),
        *_part("Drain", "All jobs wait, then are claimed and finished: jobs/s.", _drain(results, "rate")),
        *_part("Drain, cost", "The same drains: microseconds of the server's CPU a job.", _drain(results, "cpu")),
        *_part("What a job costs", "Medians of the drains, batches of 500, one exchange in flight.", _costs(results)),
        *_part("Churn", _churn_text(results, "churn"), _churn(results, "churn")),
        *_part(
            "Churn with tuned storage",
            "The same with autovacuum set per table: threshold 10,000 rows, no scale factor, no cost delay; fillfactor 70"
            " for rows that are updated.",
            _churn(results, "tuned"),
        ),
        *_part("Churn under a held snapshot", _churn_text(results, "held"), _churn(results, "held")),
        *_part(
            "Backlog",
            "After a vacuum and a checkpoint, many jobs wait of which a part is drained; beside it, only that part waits.",
            _backlog(results),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def written_into(page: str, text: str) -> str:
    """The page with the text between its two marks."""
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"the page has no marks {BEGIN} and {END} to write between")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def _part(title: str, text: str, rows: list[Row]) -> list[str]:
    return [f"### {title}", text, table(rows[0], rows[1:])] if len(rows) > 1 else []


# ---- tables: the first row is the head ---------------------------------------------------------------------------------
def _drain(results: Results, figure: str) -> list[Row]:
    sizes = sorted({(entry.batch, entry.in_flight) for entry in results.measurements if entry.scenario == "drain"})
    head = ["design", *(f"by {batch}, {in_flight} in flight" for batch, in_flight in sizes)]
    return [
        head,
        *(
            [_title(name), *(_number(results.figure(figure, "drain", name, *size)) for size in sizes)]
            for name in results.designs()
        ),
    ]


def _costs(results: Results) -> list[Row]:
    head = [
        "design", "enqueue by 1,000, jobs/s", "server µs, enqueue", "server µs, run", "WAL B, enqueue", "WAL B, run",
        "WAL B",
    ]  # fmt: skip
    rows = [head]
    for name in results.designs():
        figures = [
            results.figure(figure, "drain", name, 500, 1)
            for figure in ("enqueue_rate", "enqueue_cpu", "cpu", "enqueue_wal", "wal")
        ]
        whole = None if None in figures[3:] else sum(figures[3:])  # type: ignore[arg-type]
        rows.append([_title(name), _number(figures[0]), *(_number(value) for value in (*figures[1:], whole))])
    return rows


def _churn(results: Results, scenario: Scenario) -> list[Row]:
    head = [
        "design", "first tenth, jobs/s", "last tenth", "first tenth, server µs", "last tenth", "WAL B",
        "pages read by a claim at the end", "dead rows", "autovacuums", "tables MB", "indexes MB",
    ]  # fmt: skip
    return [head, *(_churn_row(entry) for name in results.designs() for entry in results.of(scenario, name))]


def _churn_row(entry: Measurement) -> Row:
    of = entry.figures
    rates = (of["first"], of["last"], of["first_cpu"], of["last_cpu"])
    sizes = (of["table_bytes"] / 1e6, of["index_bytes"] / 1e6)
    return [_title(entry.design), *map(_number, (*rates, of["wal"], of["reads"], of["dead"], of["vacuums"], *sizes))]


def _backlog(results: Results) -> list[Row]:
    entries = [entry for name in results.designs() for entry in results.of("backlog", name)]
    head = ["design", "jobs that wait", "jobs/s", "server µs"]
    rows = [[entry.jobs, entry.figures["rate"], entry.figures["cpu"]] for entry in entries]
    return [head, *([_title(entry.design), *map(_number, row)] for entry, row in zip(entries, rows, strict=True))]


# ---- words ---------------------------------------------------------------------------------------------------------------
def _disturbed(results: Results) -> list[str]:
    """Other programs take part in jobs/s, hardly in microseconds of the server, not at all in bytes and pages."""
    if not results.loads or median(results.loads) <= BUSY * cores():
        return []
    told = f"up to {max(results.loads):.0f} programs wanted {cores()} cores"
    return [f"**This run was disturbed:** {told}. Compare server µs, bytes and pages rather than jobs/s."]


def _churn_text(results: Results, scenario: Scenario) -> str:
    jobs = _first([entry for entry in results.measurements if entry.scenario == scenario])
    eyes = ", while another session holds a snapshot from before the first" if scenario == "held" else ""
    how = "batches of 500, two exchanges in flight, the enqueues in the same process"
    return f"{jobs} jobs come while others go{eyes}: {how}."


def _first(entries: Sequence[Measurement]) -> str:
    return f"{entries[0].jobs:,}" if entries else "No"


def _title(name: str) -> str:
    return design_named(name).title


def _number(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 or not value else f"{value:.2f}"
