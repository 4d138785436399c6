"""The command `perdure`: finds commands by name, imports only the one that is called, and prints errors as one line."""

from __future__ import annotations

import errno
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from perdure import PerdureError

DONE, FAILED, WRONG_USE = 0, 1, 2

COMMANDS = {
    "worker": "Run a worker until you stop it.",
    "jobs": "List, show, cancel and delete jobs.",
    "chain": "List the jobs of a chain or flow in order.",
    "graph": "Draw the jobs of a flow and their dependencies.",
    "dead": "List, retry, export and purge dead letters.",
    "queues": "List, pause, resume and configure queues.",
    "schedules": "List, pause, run and preview schedules.",
    "workers": "List the live workers.",
    "relay": "Move jobs from an app's outbox to its store.",
    "migrate": "Bring a store's schema up to date.",
    "promote": "Move everything from one store to another.",
    "doctor": "Check a store and print what to fix.",
    "demo": "See Perdure at work, in well under a minute.",
}
# commands of later versions
LATER = ("bench", "dashboard", "explain", "init", "top")


class Root(click.Group):
    """Lists commands from the table above and imports a command only when it is called, so `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"{__package__}.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in LATER:
            ctx.fail(f"{args[0]!r} is not in this version of Perdure; it is to come")
        if args[0] not in COMMANDS and (close := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f"there is no command {args[0]!r}; did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from perdure import PerdureError

            if is_debug(ctx):
                raise
            if isinstance(error, PerdureError):
                click.echo(f"perdure: {one_line(error)}", err=True)
                ctx.exit(exit_code_of(error))
            # a crash of a worker keeps its traceback
            if ctx.invoked_subcommand == "worker" or _is_broken_pipe(error):
                raise
            message = (
                f"{ctx.invoked_subcommand} failed: {type(error).__name__}: {one_line(error)} (--debug shows where)"
            )
            click.echo(f"perdure: {message}", err=True)
            ctx.exit(FAILED)


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from perdure import __version__

        click.echo(f"perdure {__version__}")
        ctx.exit()


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Show the traceback of an error. Works after any command too.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.pass_context
def perdure(ctx: click.Context, debug: bool) -> None:
    """A durable job queue on the database you already have.

    Name the store with --app module:app, --url URL or $PERDURE_URL. Commands that print data take --json. Exit
    codes: 0 done, 1 failed, 2 wrong use.

    \b
    Examples:
      perdure demo
      perdure worker shop.app:app --concurrency 50
      perdure jobs list --state dead --app shop.app:app
      perdure doctor --url sqlite:///jobs.db
    """
    ctx.meta["perdure.debug"] = debug


def is_debug(ctx: click.Context) -> bool:
    return bool(ctx.meta.get("perdure.debug"))


def exit_code_of(error: PerdureError) -> int:
    """2 if the call itself was wrong, 1 if it was right and failed."""
    from perdure import InvalidCall

    return WRONG_USE if isinstance(error, InvalidCall) else FAILED


def _is_broken_pipe(error: Exception) -> bool:
    """Whether the reader of the output has gone. click then exits quietly."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
