"""Descriptions of an API as text, made alike from a stub and from code.

Annotations are compared as text, after type aliases are replaced by what they stand for.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator
from typing import Any, Protocol

Table = dict[str, str]


class Aliases(Protocol):
    """Type aliases by name, as a dict has them."""

    def get(self, name: str, /) -> ast.expr | None: ...


KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional-only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional or keyword",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "keyword-only",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class _Normal(ast.NodeTransformer):
    """Replaces aliases, and sorts the members of unions and literals."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases

    def visit_Name(self, node: ast.Name) -> ast.expr:
        alias = self._aliases.get(node.id)
        return node if alias is None else self.visit(copy.deepcopy(alias))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self.visit(expression_of(node.value)) if isinstance(node.value, str) else node  # type: ignore[no-any-return]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in ("typing", "datetime", "uuid"):
            return self.visit(ast.Name(node.attr))
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        members = {ast.unparse(self.visit(member)) for member in _members_of(node)}
        flat = {part for member in members for part in member.split(" | ") if "[" not in member} | {
            member for member in members if "[" in member
        }
        return ast.Name(" | ".join(sorted(flat)))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return ast.Name(f"Literal[{', '.join(sorted(map(ast.unparse, values)))}]")
        return self.generic_visit(node)  # type: ignore[return-value]


def _members_of(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _members_of(node.left)
        yield from _members_of(node.right)
    else:
        yield node


def annotation_text(annotation: object, aliases: Aliases) -> str:
    """An annotation as text that does not depend on how it was written. Empty when there is none."""
    if annotation is None or annotation is inspect.Signature.empty:
        return ""
    if not isinstance(annotation, str | ast.expr):
        annotation = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    parsed = expression_of(annotation) if isinstance(annotation, str) else copy.deepcopy(annotation)
    return ast.unparse(_Normal(aliases).visit(parsed))


def expression_of(text: str) -> ast.expr:
    (statement,) = ast.parse(f"({text},)").body  # in a tuple, since a star may stand in front of it
    return statement.value.elts[0]  # type: ignore[attr-defined, no-any-return]


def default_text(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f" = {float(value)!r}"
    return f" = {value!r}"


def stub_default(node: ast.expr) -> str:
    return " = ..." if isinstance(node, ast.Constant) and node.value is ... else default_text(ast.literal_eval(node))


def aliases_of(tree: ast.Module) -> dict[str, ast.expr]:
    """The type aliases that a module defines: `Duration = float | timedelta`."""
    blocks = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.If))]
    found: dict[str, ast.expr] = {}
    for node in (node for block in blocks for node in block):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            if name[0].isupper() and not name.isupper() and isinstance(value, ast.BinOp | ast.Subscript | ast.Name):
                found[name] = value
    return found


def is_public(name: str) -> bool:
    return not name.startswith("_")


def signature_table(name: str, is_async: bool, parameters: list[tuple[str, str, str, str]], returns: str) -> Table:
    ordered = [parameter for parameter, kind, _, _ in parameters if kind != KINDS[inspect.Parameter.KEYWORD_ONLY]]
    table = {name: f"{'async def' if is_async else 'def'} ({', '.join(ordered)})", f"{name} -> ": returns}
    for parameter, kind, annotation, default in parameters:
        table[f"{name}({parameter})"] = f"{kind} {annotation}{default}"
    return table


def without_inherited(table: Table, bases: list[Table]) -> Table:
    """Only what a class adds to its bases or changes."""
    inherited = {key.partition(".")[2]: text for base in bases for key, text in base.items()}
    return {key: text for key, text in table.items() if inherited.get(key.partition(".")[2]) != text}


def parameters_of(node: Any, bound: bool, aliases: Aliases) -> list[tuple[str, str, str, str]]:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    found: list[tuple[str, Any, Any, Any]] = []
    for number, (each, default) in enumerate(zip(positional, defaults, strict=True)):
        only = number < len(arguments.posonlyargs)
        kind = inspect.Parameter.POSITIONAL_ONLY if only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        found.append((each.arg, kind, each.annotation, default))
    if arguments.vararg:
        found.append((arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL, arguments.vararg.annotation, None))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((each.arg, inspect.Parameter.KEYWORD_ONLY, each.annotation, default))
    if arguments.kwarg:
        found.append((arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD, arguments.kwarg.annotation, None))
    return [
        (
            name,
            KINDS[kind],
            annotation_text(annotation, aliases),
            "" if default is None else stub_default(default),
        )
        for name, kind, annotation, default in found[1 if bound else 0 :]
    ]
