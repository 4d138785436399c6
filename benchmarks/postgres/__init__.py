"""Perdure and its peers on PostgreSQL."""

from collections.abc import Sequence

from benchmarks.suite import Suite
from benchmarks.together import TOGETHER

from .goals import goals
from .graphile import Graphile
from .measures import SUITE_FIGURES, measures
from .oban import Oban
from .perdure import PerdurePostgres
from .pgqueuer import PgQueuer
from .place import SETTINGS, opened, version_of_the_run, written
from .procrastinate import Procrastinate
from .raw import raw_labels, raw_rate
from .saq import Saq


def _machine() -> Sequence[str]:
    return [
        f"PostgreSQL {version_of_the_run()} with {', '.join(f'{name} = {value}' for name, value in SETTINGS.items())}"
    ]


SUITE = Suite(
    name="postgres",
    title="PostgreSQL",
    contenders=(PerdurePostgres, PgQueuer, Procrastinate, Oban, Saq, Graphile),
    raw_labels=raw_labels,
    raw_rate=raw_rate,
    goals=goals,
    machine=_machine,
    opened=opened,
    written=written,
    figures=SUITE_FIGURES,
    measures=measures,
    remarks=(
        "The server is on the same machine with default durability: fsync, synchronous_commit and full_page_writes "
        "are on, and autovacuum runs. Only checkpoints are spread out; there is one before every measurement.",
        TOGETHER,
        "Machine at work in a drain: by one worker and the server, of all cores. What they leave is all that a second "
        "process could gain here: at 90 % no more than 1.1 times the rate.",
        "Deep backlog: as many jobs as in the drain, of {backlog:,} that wait. After churn: the rate of the last tenth of "
        "{churn:,} jobs that are drained in one go; then the same while another session holds a snapshot from "
        "before the drain. Contenders that would need many minutes to fill such a queue are left out.",
        "WAL per job is what the server writes ahead for its enqueue (bulk), claim and completion together.",
        "Perdure keeps every job with its outcome; Graphile Worker deletes what is done and keeps nothing; PgQueuer keeps "
        "a log row. oban runs on a newer Python than the others; oban and PgQueuer run on uvloop, as their own commands do.",
    ),
)
