"""`./dev sql [STORE] [NAME]`: prints the final SQL of every statement of SQLite and PostgreSQL.

The stores put their statements together from the named queries of `queries/*.sql` when they are made. This script makes a
store with a `load` that records what was asked for, and prints each text once, with its file, its name and the modules that
load it. {words} that are left in a statement are filled in at run time.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORES = ("sqlite", "postgres")
WORD = re.compile(r"\{[a-z_]+\}")
Users = dict[str, set[str]]  # modules by the text of a statement
Found = dict[tuple[str, str], Users]  # by the file and the name of the query


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev sql", description="Print the final SQL of the stores' statements.")
    parser.add_argument("store", nargs="?", choices=STORES, help="only this store (default: both)")
    parser.add_argument("name", nargs="?", help="only queries whose file or name contains this text")
    options = parser.parse_args(arguments)
    for store in STORES if options.store is None else [options.store]:
        for (file, name), users in sorted(statements(store).items()):
            if options.name is None or options.name in file or options.name in name:
                _print_query(f"src/perdure/storage/{store}/queries/{file}.sql: {name}", users)
    return 0


def statements(store: str) -> Found:
    """Every statement of a store, in all its variants."""
    package = f"perdure.storage.{store}"
    for module in [each for each in sys.modules if each.startswith(f"{package}.")]:
        del sys.modules[module]
    queries = importlib.import_module(f"{package}.queries")
    found: Found = {}
    load = _recorder(queries, found)
    queries.load = load  # type: ignore[attr-defined]
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
    if store == "postgres":
        from perdure.storage.urls import opener

        opener("postgresql://localhost/perdure")()
    for file in files(queries).iterdir():
        if file.name.endswith(".sql"):
            load(file.name.removesuffix(".sql"), *(["perdure"] if store == "postgres" else []))
    return {query: _finished(users) for query, users in found.items() if users}


def _recorder(queries: ModuleType, found: Found) -> Callable[..., Mapping[str, str]]:
    real = queries.load

    def load(file: str, *schema: str, **parts: str) -> Mapping[str, str]:
        texts: Mapping[str, str] = real(file, *schema, **parts)
        user = _caller()
        for name in _statement_names(queries, file):
            found.setdefault((file, name), {}).setdefault(texts[name], set()).add(user)
        return texts

    return load


def _caller() -> str:
    """The module of a store that called `load`; '' for this script."""
    frame: Any = inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"] in (__name__, "functools"):
        frame = frame.f_back
    name: str = frame.f_globals["__name__"] if frame is not None else ""
    return name.removeprefix("perdure.") if name.startswith("perdure.storage.") else ""


def _statement_names(queries: ModuleType, file: str) -> list[str]:
    """The queries of a file that are statements: parts of others do not end with a semicolon."""
    blocks = (files(queries) / f"{file}.sql").read_text("utf-8").split("-- name: ")[1:]
    return [block.partition("\n")[0].strip() for block in blocks if block.rstrip().endswith(";")]


def _finished(users: Users) -> Users:
    """The texts without {words}; where there are none, the ones with the fewest."""
    fewest = min(len(set(WORD.findall(text))) for text in users)
    return {text: modules for text, modules in users.items() if len(set(WORD.findall(text))) == fewest}


def _print_query(title: str, users: Users) -> None:
    for number, (text, modules) in enumerate(users.items(), start=1):
        variant = f", variant {number} of {len(users)}" if len(users) > 1 else ""
        used = ", ".join(sorted(modules - {""}))
        print(f"-- {title}{variant}{f' (loaded by {used})' if used else ''}\n{text};\n")


if __name__ == "__main__":
    sys.exit(main())
