"""Describe the public API of the imported package as a flat table, as `api_stub` does for a stub file."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib.util
import inspect
import sys
import typing
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from .api_stub import Stub
from .api_text import (
    KINDS,
    Aliases,
    Table,
    aliases_of,
    annotation_text,
    default_text,
    expression_of,
    is_public,
    parameters_of,
    signature_table,
    without_inherited,
)


class Code:
    """The API that the imported package has."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package
        self.exported = {name: getattr(package, name) for name in package.__all__}
        sync = importlib.import_module(f"{package.__name__}._sync")
        homes = {getattr(value, "__module__", package.__name__) for value in self.exported.values()}
        homes |= {
            f"{package.__name__}.admin.{name}" for name in ("jobs", "dead_letters")
        }  # types of app.jobs and app.dead
        self._homes = [sync, *(importlib.import_module(home) for home in sorted(homes))]

    def find(self, name: str) -> Any:
        """The class or function of this name: exported, or known where an exported one is defined; None if there is none."""
        if name in self.exported:
            return self.exported[name]
        known = [value for home in self._homes if isinstance(value := vars(home).get(name), type)]
        found = {value for value in known if value.__module__.startswith(self.package.__name__ + ".")}
        assert len(found) < 2, f"{name} is the name of several classes: {found}"
        return next(iter(found), None)

    def table(self, stub: Stub) -> Table:
        """What the code has of the names in a stub, and what its classes have beyond it."""
        table: Table = {}
        for name in stub.aliases:
            scopes = [ModuleAliases(home.__name__) for home in self._homes]
            if known := next((scope for scope in scopes if scope.get(name) is not None), None):
                table[f"alias {name}"] = annotation_text(name, known)
        table |= {f"constant {name}": "" for name in stub.constants if name in self.exported}
        for node in stub.functions:
            if (function := self.find(node.name)) is not None:
                table |= self._checked_signature(node.name, function)
        for name, node in stub.classes.items():
            if (kind := self.find(name)) is None:
                continue
            bases = [base for each in stub.bases(node) if (base := self.find(each.name)) is not None]
            functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            dunders = frozenset(each.name for each in functions if not is_public(each.name))
            table |= without_inherited(self.members(kind, dunders), [self.members(base, dunders) for base in bases])
            table |= {f"{name}: {trait}": "" for trait in stub.traits(node) if _has_trait(kind, trait)}
        return table

    def _checked_signature(self, name: str, function: Any) -> Table:
        """The signature of a function; that which a type checker sees, where the module has one for it alone."""
        tree = ast.parse(Path(inspect.getfile(function)).read_text())
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        for node in (node for block in blocks for node in block.body):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                aliases = self._aliases_for(function)
                returns = annotation_text(node.returns, aliases)
                return signature_table(name, False, parameters_of(node, False, aliases), returns)
        return self._signatures(name, function, bound=False)

    def sync_table(self, twins: dict[str, str]) -> Table:
        """The blocking twins."""
        table: Table = {}
        special = frozenset(("__enter__", "__exit__"))
        for twin in twins:
            if (kind := self.find(twin)) is not None:
                bases = [self.members(base, special) for base in kind.__bases__ if base.__name__ in twins]
                table |= without_inherited(self.members(kind, special), bases)
        return table

    @cache  # noqa: B019 - there is one such object in a test run
    def members(self, kind: type, dunders: frozenset[str]) -> Table:
        """The public members of a class and of its bases in this package, and those special methods that are asked for."""
        table: Table = {}
        for owner in reversed(kind.__mro__):
            if not owner.__module__.startswith(self.package.__name__):
                continue
            aliases = self._aliases_for(owner)
            annotations = inspect.get_annotations(owner)
            if not typing.is_typeddict(owner):
                table |= self._assigned(kind, owner)
            for name, annotation in annotations.items():
                if is_public(name):
                    text = annotation_text(getattr(annotation, "__forward_arg__", annotation), aliases)
                    table[f"{kind.__name__}.{name}"] = text + _field_default(owner, name)
            for name, value in vars(owner).items():
                if is_public(name) or name in dunders:
                    table |= self._member(kind, name, value, aliases, name in annotations)
        return table

    def _member(self, kind: type, name: str, value: Any, aliases: Aliases, annotated: bool) -> Table:
        spelled = f"{kind.__name__}.{name}"
        if isinstance(value, property | cached_property):
            function = value.fget if isinstance(value, property) else value.func
            return {spelled: annotation_text(inspect.signature(function).return_annotation, aliases)}  # type: ignore[arg-type]
        if isinstance(value, staticmethod):
            return self._signatures(spelled, value.__func__, bound=False)
        if isinstance(value, classmethod):
            return self._signatures(spelled, value.__func__, bound=True)
        if inspect.isfunction(value):
            return self._signatures(spelled, value, bound=True)
        if isinstance(value, enum.Enum):
            return {spelled: default_text(value.value)}
        return {}

    def _signatures(self, name: str, function: Any, bound: bool) -> Table:
        overloads = typing.get_overloads(function) or [function]
        table: Table = {}
        for number, each in enumerate(overloads):
            spelled = f"{name}[{number}]" if len(overloads) > 1 else name
            aliases = self._aliases_for(inspect.unwrap(each))
            signature = inspect.signature(each)
            parameters = [
                (
                    parameter.name,
                    KINDS[parameter.kind],
                    annotation_text(parameter.annotation, aliases),
                    "" if parameter.default is parameter.empty else default_text(parameter.default),
                )
                for parameter in list(signature.parameters.values())[1 if bound else 0 :]
            ]
            is_async = inspect.iscoroutinefunction(inspect.unwrap(each))
            returns = annotation_text(signature.return_annotation, aliases)
            table |= signature_table(spelled, is_async, parameters, returns)
        return table

    def _assigned(self, kind: type, owner: type) -> Table:
        """Public attributes that `__init__` sets: `self.jobs = Jobs(self)`."""
        aliases = self._aliases_for(owner)
        init = owner.__dict__.get("__init__")
        if not inspect.isfunction(init) or "<string>" in init.__code__.co_filename:
            return {}
        source = inspect.getsource(init)
        (function,) = ast.parse(_dedent(source)).body
        assert isinstance(function, ast.FunctionDef)
        given = {each.arg: each.annotation for each in [*function.args.args, *function.args.posonlyargs]}
        table: Table = {}
        for node in ast.walk(function):
            if isinstance(node, ast.AnnAssign):
                target, text = node.target, annotation_text(node.annotation, aliases)
            elif isinstance(node, ast.Assign):
                target, text = node.targets[0], _type_of(node.value, given, aliases)
            else:
                continue
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and is_public(target.attr):
                table[f"{kind.__name__}.{target.attr}"] = text
        return table

    def _aliases_for(self, owner: Any) -> Aliases:
        return ModuleAliases(owner.__module__)


class ModuleAliases:
    """The type aliases that a module defines or imports, for type checkers too."""

    def __init__(self, module: str) -> None:
        self._module = module

    def get(self, name: str) -> ast.expr | None:
        """What an alias stands for; None for what is no alias."""
        return _alias(self._module, name)


@cache
def _alias(module: str, name: str) -> ast.expr | None:
    tree = _tree_of(module)
    if tree is None:
        return None
    if (own := aliases_of(tree).get(name)) is not None:
        return expression_of(annotation_text(own, ModuleAliases(module)))  # in the words of the module that defines it
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            package = str(sys.modules[module].__package__)
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            return _alias(source, name)
    return None


@cache
def _tree_of(module: str) -> ast.Module | None:
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    return ast.parse(Path(file).read_text()) if file and module.startswith("perdure.") else None


def _type_of(value: ast.expr, given: dict[str, Any], aliases: Aliases) -> str:
    """The type of what is assigned, where it shows: a call of a class, or an annotated parameter."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id[0].isupper():
        return value.func.id
    if isinstance(value, ast.Name):
        return annotation_text(given.get(value.id), aliases)
    return ""


def _field_default(owner: type, name: str) -> str:
    fields = {field.name: field for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    if name in fields and fields[name].default is not dataclasses.MISSING:
        return default_text(fields[name].default)
    return ""


def _has_trait(kind: type, trait: str) -> bool:
    if trait == "final":
        return bool(getattr(kind, "__final__", False))
    if trait == "frozen":
        config = getattr(kind, "__struct_config__", None) or getattr(kind, "__dataclass_params__", None)
        return config is not None and config.frozen
    if trait.startswith("generic in "):
        parameters = getattr(kind, "__parameters__", ())
        return ", ".join(each.__name__ for each in parameters) == trait.removeprefix("generic in ").strip("()")
    base = trait.removeprefix("is a ")
    if typing.is_typeddict(kind):  # its bases do not show; their keys are compared with its own
        return True
    return base in {each.__name__ for each in kind.__mro__}


def _dedent(source: str) -> str:
    lines = source.splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)
