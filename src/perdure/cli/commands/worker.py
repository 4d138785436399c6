"""`perdure worker`: run a supervisor with runner processes until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from perdure.observe import log
from perdure.observe.log_format import log_to_stderr

from ..filters import flatten, parse_names
from ..root import one_line
from ..target import debug_option, load_app

if TYPE_CHECKING:
    from perdure import Perdure
    from perdure.worker.supervisor.team import Ended

LEVELS = ("debug", "info", "warning", "error")
PROBES = ("probe_port", "probe_host", "probe_file")
SUPERVISOR_OPTIONS = (
    "log_level",
    "log_format",
    "processes",
    "spares",
    "max_jobs",
    "max_memory",
    "no_supervisor",
    *PROBES,
)
CLOSE_WITHIN = 3.0  # seconds
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _parse_size(text: str) -> int:
    """Parse a size such as 512M or 1.5G into bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)I?B?", text.strip().upper())
    size = 0 if found is None else int(float(found[1]) * UNITS[found[2]])
    if not size:
        raise click.BadParameter(f"{text!r} is no size such as 512M or 2G")
    return size


def _parse_batch_size(text: str) -> tuple[str, int]:
    """Parse TASK=N: a batch task and its size."""
    task, _, size = text.strip().rpartition("=")
    if not task.strip() or not size.strip().isdecimal() or int(size) < 1:
        raise click.BadParameter(f"{text!r} is not of the form task=32")
    return task.strip(), int(size)


@click.command("worker")
@click.argument("target", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Jobs at once.")
@click.option("--processes", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runner processes.")
@click.option("--queues", type=parse_names, metavar="NAMES", multiple=True, help="Only these queues.  [default: all]")
@click.option(
    "--tasks", type=parse_names, metavar="NAMES", multiple=True, help="Only these tasks.  [default: all of the app]"
)
@click.option("--routing-key", metavar="KEY", help="Only jobs with this routing key.  [default: any]")
@click.option("--unrouted", is_flag=True, help="Only jobs without a routing key.")
@click.option(
    "--batch-size",
    "batch_size",
    type=_parse_batch_size,
    multiple=True,
    metavar="TASK=N",
    help="Jobs in one call of a batch task, e.g. embed=32.  [default: as declared]",
)
@click.option("--name", help="The worker's name.  [default: from host and process]")
@click.option(
    "--poll", type=click.FloatRange(min=0, min_open=True), help="Seconds between polls of the store.  [default: 1]"
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that handlers may finish at a stop.",
)
@click.option(
    "--unknown",
    type=click.Choice(["leave", "fail"]),
    default="leave",
    show_default=True,
    help="Jobs of tasks that the app does not have: leave them to other workers, or fail them.",
)
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a runner after this many jobs.")
@click.option(
    "--max-memory", type=_parse_size, metavar="SIZE", help="Replace a runner above this memory, e.g. 512M or 2G."
)
@click.option(
    "--spares",
    type=click.IntRange(0, 100),
    default=1,
    show_default=True,
    help="Idle runners that replace a lost one at once.",
)
@click.option("--no-supervisor", is_flag=True, help="Run everything in this one process.")
@click.option("--runner", hidden=True)  # how a supervisor starts its runners
@click.option(
    "--probe-port",
    type=click.IntRange(0, 65535),
    envvar="PERDURE_PROBE_PORT",
    help="Answer /live, /ready and /scale over HTTP on this port.",
)
@click.option(
    "--probe-host",
    envvar="PERDURE_PROBE_HOST",
    default="127.0.0.1",
    show_default=True,
    help="The address of that port.",
)
@click.option(
    "--probe-file",
    type=click.Path(dir_okay=False),
    envvar="PERDURE_PROBE_FILE",
    help="Touch this file every second while the worker is alive.",
)
@click.option(
    "--check-file",
    type=click.Path(dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, file: _check_file(context, file),
    help="Run nothing: exit with 0 if the worker that touches this file is alive, else with 1.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text, or one JSON object per line.",
)
@debug_option
def command(target: str, runner: str | None, **options: Any) -> None:
    """Run jobs of MODULE:APP until SIGTERM or SIGINT.

    A supervisor keeps --processes runners at work, each with --concurrency slots. It renews their leases, returns the jobs
    of a dead runner at once, and kills a runner that is stuck in a job beyond its timeout.

    The first signal lets running jobs finish for at most --grace seconds; a second one cuts this short. Jobs that do not
    finish are handed back. SIGHUP starts new runners and lets the old ones finish.

    \b
    Examples:
      perdure worker shop.app:app
      perdure worker shop.app:app --concurrency 10 --queues mail,reports
      perdure worker shop.app:app --processes 4 --max-jobs 10000 --max-memory 1G
      perdure worker shop.app:app --tasks embed --routing-key vector --log-level warning
      perdure worker shop.app:app --probe-port 8641 --probe-file /run/shop/worker
    """
    if runner is not None:
        for number in (signal.SIGTERM, signal.SIGINT):  # before it is ready, they end the runner at once
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGINT}
        )  # the supervisor blocked it for the interpreter's start
        _run_under_supervisor(target, runner)
        return
    # before the worker runs, SIGTERM ends the process at once; the worker then installs its own handler
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log_to_stderr(options["log_level"], options["log_format"])
    if (why := _why_no_supervisor(options["no_supervisor"])) is None:
        ended = _supervise(target, options)
        if ended.alone is None:
            sys.exit(ended.code)
        why = ended.alone
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the supervisor's handler ended with its loop
    log.runs_alone(why)
    app, chosen = _prepare(target, options)
    asyncio.run(_run(app, chosen, _probe_options(options)))


# ---- with a supervisor, as a runner, alone -----------------------------------------------------------------------------
def _why_no_supervisor(asked: bool) -> str | None:
    if asked:
        return "--no-supervisor"
    return "there is no supervisor on Windows" if sys.platform == "win32" else None


def _supervise(target: str, options: dict[str, Any]) -> Ended:
    from perdure import Perdure
    from perdure.worker.supervisor.supervisor import supervise
    from perdure.worker.supervisor.team import Team

    def on_store(url: str) -> Perdure:
        return Perdure(url, migrate=False, durability="relaxed")  # the runners migrate and check durability

    team = Team(
        command=[sys.executable, "-m", "perdure", "worker", target],
        options=options,
        name=options["name"] or f"{socket.gethostname()}-{os.getpid()}",
        open_app=on_store,
        processes=options["processes"],
        spares=options["spares"],
        grace=options["grace"],
        max_jobs=options["max_jobs"],
        max_memory=options["max_memory"],
        probe=_probe_options(options),
    )
    return supervise(team)


def _probe_options(options: dict[str, Any]) -> dict[str, Any] | None:
    probes = {name.removeprefix("probe_"): options[name] for name in PROBES}
    return None if probes["port"] is None and probes["file"] is None else probes


def _run_under_supervisor(target: str, descriptors: str) -> None:
    from perdure.worker.supervisor.runner import Supervised

    supervised = Supervised(descriptors)
    if not supervised.options:
        return  # the supervisor has already exited
    log_to_stderr(supervised.options["log_level"], supervised.options["log_format"])
    app, chosen = _prepare(target, supervised.options)
    asyncio.run(supervised.run(app, **chosen))


def _prepare(target: str, options: dict[str, Any]) -> tuple[Perdure, dict[str, Any]]:
    """Load the app and its tasks, and build the options of its worker."""
    from perdure.worker.supervisor.runner import tune_collector

    app = load_app(target)
    tasks = _import_tasks(app, target)
    tune_collector()
    log.tasks_found(tasks)
    return app, _worker_options(tasks, **{name: options[name] for name in options if name not in SUPERVISOR_OPTIONS})


def _import_tasks(app: Perdure, target: str) -> list[str]:
    """Import the modules that the app names, and return the names of its tasks."""
    for module in app.imports:
        try:
            import_module(module)
        except ImportError as error:
            raise click.UsageError(f"the app imports {module!r}, which failed: {one_line(error)}") from error
    tasks = sorted(app.definitions())
    if not tasks:
        raise click.UsageError(
            f"{target} has no tasks, so there is nothing to run; "
            'name the modules that define them: Perdure(…, imports=["shop.tasks"])'
        )
    return tasks


def _worker_options(
    known: list[str],
    *,
    queues: Sequence[Sequence[str]],
    tasks: Sequence[Sequence[str]],
    routing_key: str | None,
    unrouted: bool,
    batch_size: Sequence[tuple[str, int]],
    **rest: Any,
) -> dict[str, Any]:
    """The options as `app.worker` takes them, with only those that were set."""
    if unrouted and routing_key is not None:
        raise click.UsageError("--routing-key and --unrouted exclude each other")
    options = {name: value for name, value in rest.items() if value is not None}
    if queues:
        options["queues"] = flatten(queues)
    if tasks:
        options["tasks"] = flatten(tasks)
        if unknown := sorted(set(flatten(tasks)) - set(known)):
            raise click.UsageError(f"the app has no task {', '.join(unknown)}; it has {', '.join(known)}")
    if unrouted or routing_key is not None:
        options["routing_key"] = routing_key
    if batch_size:
        options["batch_size"] = dict(batch_size)
    return options


async def _run(app: Perdure, options: dict[str, Any], probes: dict[str, Any] | None) -> None:
    worker = app.worker(**options)
    async with _open_probe(worker, probes):
        await worker.run()
    with suppress(TimeoutError):  # closing may still wait for a store that was never reached
        async with asyncio.timeout(CLOSE_WITHIN):
            await app.close()


def _open_probe(worker: Any, probes: dict[str, Any] | None) -> AbstractAsyncContextManager[Any]:
    from perdure.worker.health.probe import Probe

    return nullcontext() if probes is None else Probe.of(worker, **probes)


def _check_file(context: click.Context, file: str | None) -> None:
    from perdure.worker.health.probe import lives

    if file is not None:
        alive = lives(file)
        click.echo("it lives" if alive else f"nobody has touched {file} lately", err=not alive)
        context.exit(0 if alive else 1)
