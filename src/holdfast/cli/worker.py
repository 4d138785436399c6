"""`holdfast worker`: one process that claims jobs and runs them until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
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
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@debug_option
def command(target: str, log_level: str, **options: Any) -> None:
    """Run jobs of MODULE:APP until SIGTERM or SIGINT.

    The first signal lets running jobs end (at most --grace seconds), a second one hurries. Jobs that stop when they are
    told are handed back; those of a thread that does not stop come back when their lease ends.

    \b
    Examples:
      holdfast worker shop.app:app
      holdfast worker shop.app:app --concurrency 10 --queues mail,reports
      holdfast worker shop.app:app --tasks embed --routing-key vector --log-level warning
    """
    # told to stop before it works: nothing is under way; the worker's own handler takes over when it runs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log_to_stderr(log_level)
    app = load_app(target)
    tasks = _imported_tasks(app, target)
    logging.getLogger("holdfast").info("tasks: %s", ", ".join(tasks))
    asyncio.run(_run(app, _worker_options(tasks, **options)))


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


async def _run(app: Holdfast, options: dict[str, Any]) -> None:
    async with app:
        await app.worker(**options).run()
