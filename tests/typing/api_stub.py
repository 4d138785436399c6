"""Describe the API of a stub file as a flat table.

A table maps a name to its description, for example `Jobs.find(limit)` to `keyword-only int = 50`. `api_code` makes the same
table from the imported code, so that the two can be compared entry by entry.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .api_text import (
    Table,
    aliases_of,
    annotation_text,
    default_text,
    is_public,
    parameters_of,
    signature_table,
    stub_default,
    without_inherited,
)


class Stub:
    """The API that a stub file describes."""

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text())
        self.aliases = aliases_of(tree)
        self.classes = {
            node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and is_public(node.name)
        }
        self.functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.constants = [node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)]  # type: ignore[union-attr]
        self.names = {*self.classes, *self.aliases, *self.constants, *(node.name for node in self.functions)}

    def table(self) -> Table:
        """Everything in it, by name."""
        table: Table = {f"alias {name}": annotation_text(value, self.aliases) for name, value in self.aliases.items()}
        table |= {f"constant {name}": "" for name in self.constants}
        for node in self.functions:
            table |= self._signatures(node.name, [node])
        for name, node in self.classes.items():
            table |= without_inherited(self._class(node), [self._class(base) for base in self.bases(node)])
            table |= {f"{name}: {trait}": "" for trait in self.traits(node)}
        return table

    def sync_tables(self) -> tuple[Table, dict[str, str]]:
        """What the blocking twins must have, and the name of the class that each belongs to."""
        table: Table = {}
        originals: dict[str, str] = {}
        for name, node in self.classes.items():
            twin = next((_twin_of(each) for each in node.body if getattr(each, "name", "") == "sync"), None)
            if twin is not None:
                originals[twin] = name
                own = without_inherited(
                    self._class(node, blocking=True), [self._class(base, blocking=True) for base in self.bases(node)]
                )
                table |= {twin + key.removeprefix(name): text for key, text in own.items()}
        return table, originals

    def fields(self) -> dict[str, list[str]]:
        """The fields of its dataclasses, in their order."""
        return {
            name: [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]  # type: ignore[union-attr]
            for name, node in self.classes.items()
            if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        }

    def bases(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        return [self.classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in self.classes]

    def traits(self, node: ast.ClassDef) -> Iterator[str]:
        for base in node.bases:
            if isinstance(base, ast.Subscript):
                yield f"generic in {ast.unparse(base.slice)}"
            else:
                yield f"is a {ast.unparse(base)}"
        for decorator in map(ast.unparse, node.decorator_list):
            yield "final" if decorator == "final" else "frozen"

    def _class(self, node: ast.ClassDef, blocking: bool = False) -> Table:
        table: Table = {}
        for base in self.bases(node):
            inherited = self._class(base, blocking)
            table |= {node.name + key.removeprefix(base.name): text for key, text in inherited.items()}
        functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.setdefault(each.name, []).append(each)
            elif not blocking:
                table |= self._attribute(node.name, each)
        for name, overloads in functions.items():
            if blocking:
                overloads = [twin for each in overloads if (twin := _blocking(each)) is not None]
                name = overloads[0].name if overloads else name
            table |= self._signatures(f"{node.name}.{name}", overloads)
        return table

    def _attribute(self, owner: str, node: ast.stmt) -> Table:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = "" if node.value is None else stub_default(node.value)
            return {f"{owner}.{node.target.id}": annotation_text(node.annotation, self.aliases) + default}
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            return {f"{owner}.{node.targets[0].id}": default_text(ast.literal_eval(node.value))}
        return {}

    def _signatures(self, name: str, overloads: list[Any]) -> Table:
        decorators = {ast.unparse(each) for node in overloads for each in node.decorator_list}
        if "property" in decorators:
            return {name: annotation_text(overloads[0].returns, self.aliases)}
        table: Table = {}
        for number, node in enumerate(overloads):
            spelled = f"{name}[{number}]" if len(overloads) > 1 else name
            bound = "." in name and "staticmethod" not in decorators
            table |= signature_table(
                spelled,
                isinstance(node, ast.AsyncFunctionDef),
                parameters_of(node, bound, self.aliases),
                annotation_text(node.returns, self.aliases),
            )
        return table


def _twin_of(node: Any) -> str:
    returns = node.returns
    return ast.unparse(returns.value if isinstance(returns, ast.Subscript) else returns)


_BLOCKING = (
    ("AsyncIterator", "Iterator"),
    ("AbstractAsyncContextManager", "AbstractContextManager"),
)


def _blocking(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef | None:
    """The blocking form of a verb, or None for what is no verb."""
    returns = ast.unparse(node.returns) if node.returns else "None"
    for waiting, blocking in _BLOCKING:
        if returns.startswith(waiting):
            returns = returns.replace(waiting, blocking, 1)
            break
    else:
        if not isinstance(node, ast.AsyncFunctionDef):
            return None
    name = node.name.replace("__a", "__") if node.name.startswith("__a") else node.name
    twin = ast.FunctionDef(name, node.args, node.body, node.decorator_list, ast.parse(returns, mode="eval").body)
    twin.type_params = []  # type: ignore[attr-defined]
    return twin
