"""What the groups of commands about things on record have in common."""

from __future__ import annotations

import click


class Listing(click.Group):
    """Without a subcommand: list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
