"""The designs, and how their SQL is put together."""

import re
from dataclasses import dataclass
from pathlib import Path

from .columns import GIVEN, MOVING, names

SQL = Path(__file__).parent / "sql"
# Plans must not depend on what the statistics say of tables that are full now and empty then. Rows are looked up one by one
# (LATERAL … OFFSET 0), written by their place (ctid), and what is left to join is two batches: by hash.
PLANNED = "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off"
TUNED = (
    "WITH (fillfactor = {fill}, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,"
    " autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.2,"
    " autovacuum_analyze_threshold = 10000)"
)
LEASE_INDEX = "CREATE INDEX holds_lease ON holds (leased_until);"
# What NULL stands for in a job's row: the policies that most jobs have.
POLICIES = """
    coalesce(backoff, '["exponential",1000000,2.0,3600000000,0]'), coalesce(retention, '{"age":604800000000}'),
    coalesce(dead_retention, '{}'), coalesce(run_when, 'succeeded')"""


@dataclass(frozen=True)
class Design:
    """One way of keeping jobs. `mark`: the worker remembers how far each lane was claimed and scans from there."""

    name: str
    title: str
    file: str
    whole: bool = False  # the whole record moves; `file` says what becomes of ended ones
    mark: bool = False
    keeps: bool = True  # ended jobs stay on record
    lease_index: bool = True
    fill: int = 100  # how full the pages of moving rows are packed, when tuned

    def sql(self, *, tuned: bool, batch: int) -> str:
        """Everything that the database of this design needs."""
        sections = {**(_sections("whole") if self.whole else {}), **_sections(self.file)}
        sections["tuned"] = TUNED.format(fill=self.fill) if tuned else ""
        sections["lease_index"] = LEASE_INDEX if self.lease_index else ""
        sections["batch"] = str(batch)
        return _filled(_read("frame"), sections)


DESIGNS = (
    Design("in-place", "update in place, one table", "in_place", whole=True, fill=70),
    Design("hot-history", "hot + history", "hot_history", whole=True, fill=70),
    Design("deleted", "delete when done", "deleted", whole=True, keeps=False, fill=70),
    Design("deleted-mark", "delete when done, low-water mark", "deleted", whole=True, keeps=False, fill=70, mark=True),
    Design("narrow", "narrow", "narrow"),
    Design("narrow-mark", "narrow, low-water mark", "narrow", mark=True),
    Design("narrow-unleased", "narrow, mark, no index on leases", "narrow", mark=True, lease_index=False),
    Design("slim-mark", "narrow with hashed lanes, mark", "slim", mark=True),
    Design("append", "append-only batches by sequence", "append"),
)


def design_named(name: str) -> Design:
    return next(design for design in DESIGNS if design.name == name)


def _read(name: str) -> str:
    return (SQL / f"{name}.sql").read_text()


def _sections(name: str) -> dict[str, str]:
    """The parts of a file, each under a line `-- name: …`."""
    parts = _read(name).split("-- name: ")[1:]
    return {head.strip(): body.strip() for head, _, body in (part.partition("\n") for part in parts)}


def _filled(text: str, sections: dict[str, str]) -> str:
    """The text with every {name} replaced; what is put in may name others."""
    values = {**_CONSTANT, **sections}
    pattern = re.compile("{(" + "|".join(values) + ")}")
    while pattern.search(text):
        text = pattern.sub(lambda found: values[found[1]], text)
    return text


_CONSTANT = {
    "given": GIVEN,
    "moving": MOVING,
    "given_names": names(GIVEN),
    "moving_names": names(MOVING),
    "planned": PLANNED,
    "policies": POLICIES,
}
