"""The command line. `root` knows the commands by name; each has a file of its own, imported when it is called."""

from __future__ import annotations


def main() -> None:
    from .root import perdure

    perdure(prog_name="perdure")
