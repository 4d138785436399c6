"""Perdure and its peers on Valkey, which speaks for Redis too."""

from collections.abc import Sequence

from benchmarks.suite import Suite
from benchmarks.together import TOGETHER

from .arq import Arq
from .bullmq import BullMQNode, BullMQPython
from .celery import CeleryPrefork, CeleryThreads
from .dramatiq import Dramatiq
from .goals import goals
from .huey import Huey
from .measures import SUITE_FIGURES, measures
from .perdure import PerdureAlways, PerdureRedis
from .place import SETTINGS, opened, version_of_the_run, written
from .raw import raw_labels, raw_rate
from .rq import Rq
from .saq import Saq
from .taskiq import Taskiq


def _machine() -> Sequence[str]:
    return [f"Valkey {version_of_the_run()} with {', '.join(f'{name} {value}' for name, value in SETTINGS.items())}"]


SUITE = Suite(
    name="redis",
    title="Redis and Valkey",
    contenders=(
        PerdureRedis,
        PerdureAlways,
        CeleryPrefork,
        CeleryThreads,
        Dramatiq,
        Rq,
        Huey,
        Arq,
        Taskiq,
        Saq,
        BullMQPython,
        BullMQNode,
    ),
    raw_labels=raw_labels,
    raw_rate=raw_rate,
    goals=goals,
    machine=_machine,
    opened=opened,
    written=written,
    figures=SUITE_FIGURES,
    measures=measures,
    remarks=(
        "The server is on the same machine. Its append-only file is synced every second and made anew before every "
        "measurement, never during one. Perdure is measured a second time with a file that is synced before every answer.",
        TOGETHER,
        "The server's memory per waiting job is the growth of used_memory without buffers. The append-only file per job is "
        "what its enqueue, claim and completion together add to it.",
        "Every worker runs as its own command or guide recommends, with 50 slots where it has slots, in one process. "
        "Celery's prefork pool has one process per core. Celery's prefork pool and RQ run handlers in forked "
        "processes, which are not part of the worker's memory. For contenders that keep no finished jobs, a drain "
        "ends with the last handler call.",
        "arq and SAQ run with older versions of the driver, because they do not accept the newest; taskiq runs on "
        "uvloop, as its own command does. Slow contenders drain fewer jobs, which favours them.",
        "Where the figure for sync handlers equals the drain, the contender's handlers are always blocking functions.",
    ),
)
