"""`holdfast worker`: one process that claims jobs and runs them until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from .filters import listed, names
from .root import one_line
from .store import debug_option, load_app

if TYPE_CHECKING:
    from holdfast import Holdfast

LEVELS = ("debug", "info", "warning", "error")


@click.command("worker")
@click.argument("target", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Jobs at once.")
@click.option("--queues", type=names, multiple=True, help="Only these queues.  [default: all]")
@click.option("--tasks", type=names, multiple=True, help="Only these tasks.  [default: all of the app]")
@click.option("--routing-key", metavar="KEY", help="Only jobs with this routing key.  [default: any]")
@click.option("--unrouted", is_flag=True, help="Only jobs without a routing key.")
@click.option("--name", help="The worker's name.  [default: made of host and process]")
@click.option("--poll", type=click.FloatRange(min=0, min_open=True), help="Seconds between looks at the store.")
@click.option("--grace", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds for a stop.")
@click.option(
    "--unknown",
    type=click.Choice(["leave", "fail"]),
    default="leave",
    show_default=True,
    help="Jobs of tasks that the app does not know: leave them to other workers, or fail them.",
)
@click.option(
    "--probe-port",
    type=click.IntRange(0, 65535),
    envvar="HOLDFAST_PROBE_PORT",
    help="Answer /live, /ready and /scale over HTTP on this port.",
)
@click.option(
    "--probe-host",
    envvar="HOLDFAST_PROBE_HOST",
    default="127.0.0.1",
    show_default=True,
    help="Where that port is open.",
)
@click.option(
    "--probe-file",
    type=click.Path(dir_okay=False),
    envvar="HOLDFAST_PROBE_FILE",
    help="Touch this file while it lives.",
)
@click.option(
    "--check-file",
    type=click.Path(dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, file: _check(context, file),
    help="Run nothing: exit with 0 if the worker that touches this file lives, else with 1.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@debug_option
def command(
    target: str, log_level: str, probe_port: int | None, probe_host: str, probe_file: str | None, **options: Any
) -> None:
    """Run jobs of MODULE:APP until SIGTERM or SIGINT.

    The first signal lets running jobs end (at most --grace seconds), a second one hurries. Jobs that stop when they are
    told are handed back; those of a thread that does not stop come back when their lease ends.

    \b
    Examples:
      holdfast worker shop.app:app
      holdfast worker shop.app:app --concurrency 10 --queues mail,reports
      holdfast worker shop.app:app --tasks embed --routing-key vector --log-level warning
      holdfast worker shop.app:app --probe-port 8641 --probe-file /run/shop/worker
    """
    # told to stop before it works: nothing is under way; the worker's own handler takes over when it runs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log_to_stderr(log_level)
    app = load_app(target)
    tasks = _imported_tasks(app, target)
    logging.getLogger("holdfast").info("tasks: %s", ", ".join(tasks))
    probes = {"port": probe_port, "host": probe_host, "file": probe_file}
    asyncio.run(_run(app, _worker_options(tasks, **options), probes))


def log_to_stderr(level: str) -> None:
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("holdfast").setLevel(level.upper())


def _imported_tasks(app: Holdfast, target: str) -> list[str]:
    """The names of the app's tasks, once the modules are imported that it names."""
    for module in app.imports:
        try:
            import_module(module)
        except ImportError as error:
            raise click.UsageError(f"the app imports {module!r}, which failed: {one_line(error)}") from error
    tasks = sorted(app.definitions())
    if not tasks:
        raise click.UsageError(
            f"{target} has no tasks, so there is nothing to run; "
            'name the modules that define them: Holdfast(…, imports=["shop.tasks"])'
        )
    return tasks


def _worker_options(
    known: list[str],
    *,
    queues: tuple[tuple[str, ...], ...],
    tasks: tuple[tuple[str, ...], ...],
    routing_key: str | None,
    unrouted: bool,
    **rest: Any,
) -> dict[str, Any]:
    """The options as `app.worker` takes them: only what was given."""
    if unrouted and routing_key is not None:
        raise click.UsageError("--routing-key and --unrouted exclude each other")
    options = {name: value for name, value in rest.items() if value is not None}
    if queues:
        options["queues"] = listed(queues)
    if tasks:
        options["tasks"] = listed(tasks)
        if strangers := sorted(set(listed(tasks)) - set(known)):
            raise click.UsageError(f"the app has no task {', '.join(strangers)}; it has {', '.join(known)}")
    if unrouted or routing_key is not None:
        options["routing_key"] = routing_key
    return options


async def _run(app: Holdfast, options: dict[str, Any], probes: dict[str, Any]) -> None:
    async with app:
        worker = app.worker(**options)
        async with _probe(worker, probes):
            await worker.run()


def _probe(worker: Any, probes: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
    from holdfast.worker.probe import Probe

    asked = probes["port"] is not None or probes["file"] is not None
    return Probe.of(worker, **probes) if asked else nullcontext()


def _check(context: click.Context, file: str | None) -> None:
    from holdfast.worker.probe import lives

    if file is not None:
        alive = lives(file)
        click.echo("it lives" if alive else f"nobody has touched {file} lately", err=not alive)
        context.exit(0 if alive else 1)
