"""Choose the store of a command: `--app module:app`, `--url URL`, or $PERDURE_URL."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from perdure import Perdure

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_FILE = "perdure.db"  # the file of an app without a URL


def on_store(verb: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Turn `async def verb(app, **options)` into a command with --app, --url and --debug that opens the app."""

    @store_options
    @functools.wraps(verb)
    def command(target: str | None, url: str | None, **options: Any) -> None:
        asyncio.run(_run_in_app(app_of(target, url), verb, options))

    return command


async def _run_in_app(app: Perdure, verb: Callable[..., Awaitable[None]], options: dict[str, Any]) -> None:
    async with app:
        await verb(app, **options)


def store_options(command: F) -> F:
    for option in (
        debug_option,
        click.option("--url", metavar="URL", help="The store, e.g. sqlite:///jobs.db.  [default: $PERDURE_URL]"),
        click.option("--app", "target", metavar="MODULE:APP", help="The store of this app, e.g. shop.app:app."),
    ):
        command = option(command)
    return command


def debug_option(command: F) -> F:
    """Accept --debug after the command too."""

    def remember(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.meta["perdure.debug"] = True

    return click.option(
        "--debug", is_flag=True, expose_value=False, callback=remember, help="Show the traceback of an error."
    )(command)


def app_of(target: str | None, url: str | None) -> Perdure:
    """The app of a command. An app made from a URL does not migrate and accepts any durability."""
    from perdure import Perdure

    if target is not None and url is not None:
        raise click.UsageError("--app and --url both name a store; give one of them")
    if target is not None:
        return load_app(target)
    return Perdure(url_of(url), migrate=False, durability="relaxed")


def url_of(url: str | None) -> str:
    """The URL of the option or of the environment, or the default file if it exists."""
    found = url or os.environ.get("PERDURE_URL")
    if found:
        return found
    if Path(DEFAULT_FILE).exists():
        return f"sqlite:///{DEFAULT_FILE}"
    raise click.UsageError("which store? Give --app module:app or --url URL, or set PERDURE_URL")


def load_app(target: str) -> Perdure:
    """The app that `module:app` names. `module` alone means its only app."""
    from perdure import Perdure

    name, colon, path = target.partition(":")
    module = _import_module(name, target)
    if not colon:
        return _only_app(module)
    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"module {name!r} has no attribute {path!r}{_apps_hint(module)}")
        found = getattr(found, part)
    if not isinstance(found, Perdure):
        raise click.UsageError(f"{target!r} is of type {type(found).__name__}, not a Perdure app{_apps_hint(module)}")
    return found


def _import_module(name: str, target: str) -> ModuleType:
    if not name or "/" in name or name.endswith(".py"):
        raise click.UsageError(f"{target!r} is not of the form module:app, e.g. shop.app:app for shop/app.py")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise _import_error(name, error) from error
        raise click.UsageError(
            f"there is no module {error.name!r} to import (looked in this folder and on PYTHONPATH)"
        ) from error
    except Exception as error:
        raise _import_error(name, error) from error


def _import_error(name: str, error: Exception) -> Exception:
    from perdure import PerdureError

    if isinstance(error, PerdureError):
        return error
    return PerdureError(f"importing {name!r} failed: {type(error).__name__}: {error} (--debug shows where)")


def _only_app(module: ModuleType) -> Perdure:
    apps = _apps(module)
    if not apps:
        raise click.UsageError(f"module {module.__name__!r} holds no Perdure app; name it as {module.__name__}:app")
    if len(apps) > 1:
        raise click.UsageError(f"module {module.__name__!r} holds several apps; name one{_apps_hint(module)}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, Perdure]:
    """The apps of a module by name. An app with two names is listed once."""
    from perdure import Perdure

    apps: dict[str, Perdure] = {}
    for name, value in vars(module).items():
        if isinstance(value, Perdure) and not any(value is app for app in apps.values()):
            apps[name] = value
    return apps


def _apps_hint(module: ModuleType) -> str:
    names = ", ".join(f"{module.__name__}:{name}" for name in _apps(module))
    return f"; there is {names}" if names else ""


# ---- the part of an app that its public API does not offer -----------------------------------------
def runtime_of(app: Perdure) -> Any:
    """The store, outbox and relay of an app."""
    return app._runtime


async def outbox_of(app: Perdure) -> Any:
    """The open outbox of an app that has one."""
    outboxes = runtime_of(app).loops.outboxes
    assert outboxes is not None
    return await outboxes.get()
