"""The command line. `root` lists the commands; each is a module of `commands`, imported when it is called."""

from __future__ import annotations


def main() -> None:
    from .root import perdure

    perdure(prog_name="perdure")
