"""The figures of the code: sizes, names and private access. `./dev figures [COMMIT]` prints them, beside those of a commit;
`./dev figures --list` names what is counted.

They are held to their budgets by `tests/project/test_budgets.py`.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/perdure"
STORES = ("memory", "sqlite", "postgres", "redis", "mongo")
LONGEST_FILE = 400  # lines
LARGEST_FOLDER = 15  # modules beside __init__.py
GENERATED = "_sync.py"
QUERIES = (".sql", ".lua")
OWN = ("self", "cls", "super()")
PUBLIC = frozenset(("_asdict", "_replace", "_fields", "_make", "_exit", "_getframe", "_current_frames"))  # documented
NO_PARTICIPLES = frozenset(("feed", "need", "seed", "embed", "exceed", "proceed", "succeed", "speed", "shed"))
IRREGULAR = re.compile(
    "bound|brought|done|drawn|found|given|gone|heard|held|hidden|kept|known|left|lost|made|paid|said|seen|sent|shown|spent"
    "|taken|thrown|told|understood|undone|woken|won|written"
)


@dataclass(frozen=True)
class Module:
    path: str  # within the package
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


@dataclass
class Figures:
    """What was counted in one checkout. Lists name what a number counts."""

    lines: dict[str, int]  # by block
    files: int
    top_modules: list[str]
    long_files: list[str]
    large_folders: list[str]
    participles: list[str]
    private_accesses: list[str]
    foreign_names: list[str]
    modules: list[Module] = field(repr=False, default_factory=list)

    def table(self) -> dict[str, int]:
        return {
            "modules at the top": len(self.top_modules),
            "files of Python": self.files,
            **{f"lines: {block}": count for block, count in self.lines.items()},
            f"files over {LONGEST_FILE} lines": len(self.long_files),
            f"folders over {LARGEST_FOLDER} modules": len(self.large_folders),
            "functions named by participles": len(self.participles),
            "private access across objects": len(self.private_accesses),
            "private names of drivers and of Python": len(self.foreign_names),
        }


def figures_of(root: Path) -> Figures:
    package = root / PACKAGE
    modules = [Module(str(file.relative_to(package)), file.read_text()) for file in sorted(package.rglob("*.py"))]
    others = [file for file in sorted(package.rglob("*")) if file.suffix in QUERIES]
    queries = [Module(str(file.relative_to(package)), file.read_text()) for file in others]
    return Figures(
        lines=_lines(modules, queries),
        files=len(modules),
        top_modules=[module.path for module in modules if "/" not in module.path],
        long_files=[
            f"{module.path}: {module.lines}"
            for module in [*modules, *queries]
            if module.lines > LONGEST_FILE and module.path != GENERATED
        ],
        large_folders=_large_folders(modules),
        participles=[line for module in modules for line in _participles(module)],
        private_accesses=[line for module in modules for line in _private_accesses(module)],
        foreign_names=_foreign_names(modules),
        modules=modules,
    )


def block_of(path: str) -> str:
    """The budget that a file belongs to. The engine is everything that is not a store, the CLI or for tests."""
    parts = path.split("/")
    if parts[0] == "storage" and parts[1] in STORES:
        return parts[1]
    return parts[0] if parts[0] in ("cli", "testing") else "engine"


def _lines(modules: list[Module], queries: list[Module]) -> dict[str, int]:
    counts = dict.fromkeys(("engine", *STORES, "cli", "testing"), 0)
    for module in modules:
        counts[block_of(module.path)] += module.lines
    counts["all Python"] = sum(counts.values())
    for file in queries:
        block = f"{block_of(file.path)}, SQL or Lua"
        counts[block] = counts.get(block, 0) + file.lines
    counts["all SQL and Lua"] = sum(file.lines for file in queries)
    return counts


def _large_folders(modules: list[Module]) -> list[str]:
    counts: dict[str, int] = {}
    for module in modules:
        folder, _, name = module.path.rpartition("/")
        counts[folder] = counts.get(folder, 0) + (name != "__init__.py")
    return [f"{folder or '.'}: {count}" for folder, count in counts.items() if count > LARGEST_FOLDER]


# ---- names


def _participles(module: Module) -> Iterator[str]:
    """Functions whose first word is a participle, unless they are properties or answer yes or no."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _may_be_adjective(node):
            word = node.name.strip("_").split("_")[0]
            if IRREGULAR.fullmatch(word) or (re.fullmatch(r"\w{2,}ed", word) and word not in NO_PARTICIPLES):
                yield f"{module.path}:{node.lineno} {node.name}"


def _may_be_adjective(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    returns = ast.unparse(node.returns) if node.returns else ""
    return bool(decorators & {"property", "cached_property", "setter"}) or returns.startswith(
        ("bool", "TypeGuard", "TypeIs")
    )


# ---- private access


def _accesses(module: Module) -> Iterator[tuple[ast.Attribute, str]]:
    """Attributes that begin with one underscore, and the text of the object that has them."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in PUBLIC:
            yield node, ast.unparse(node.value)


def _private_accesses(module: Module) -> Iterator[str]:
    for node, owner in _accesses(module):
        if owner not in OWN:
            yield f"{module.path}:{node.lineno} {owner}.{node.attr}"


def _foreign_names(modules: list[Module]) -> list[str]:
    """Private names that nothing in the package defines: they belong to a driver or to Python's library."""
    ours = {name for module in modules for name in _defined(module)}
    found = []
    for module in modules:
        found += [
            f"{module.path}:{node.lineno} {owner}.{node.attr}"
            for node, owner in _accesses(module)
            if node.attr not in ours
        ]
        found += [f"{module.path}:{node.lineno} {name}" for node in ast.walk(module.tree) for name in _imported(node)]
    return found


def _defined(module: Module) -> Iterator[str]:
    yield module.path.rpartition("/")[2].removesuffix(".py")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value  # __slots__ and setattr


def _imported(node: ast.AST) -> Iterator[str]:
    """Private modules and names that are imported from outside the package."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in names:
        first, *rest = name.split(".")
        if first not in ("perdure", "__future__") and any(re.match("_[^_]", part) for part in (first, *rest)):
            yield name


# ---- the command


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev figures", description="Print sizes, names and private access of the code."
    )
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="print the figures of this commit beside them")
    parser.add_argument("--list", action="store_true", help="name what is counted")
    options = parser.parse_args(arguments)
    if options.list:
        _print_lists(figures_of(ROOT))
        return 0
    columns = [("the working tree", figures_of(ROOT).table())]
    for commit in options.commits:
        if subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", f"{commit}:{PACKAGE}"], cwd=ROOT, capture_output=True
        ).returncode:
            parser.error(f"this repository has no commit {commit} with {PACKAGE}")
        with tempfile.TemporaryDirectory(prefix="perdure-figures-") as folder:
            _check_out(commit, Path(folder))
            columns.insert(-1, (commit, figures_of(Path(folder)).table()))
    names = list(dict.fromkeys(name for _, table in columns for name in table))
    rows = [["", *(title for title, _ in columns)]]
    rows += [[name, *(f"{table.get(name, 0):,}" for _, table in columns)] for name in names]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns) + 1)]
    for row in rows:
        print("  ".join(cell.ljust(width) if not column else cell.rjust(width)
                        for column, (cell, width) in enumerate(zip(row, widths, strict=True))))  # fmt: skip
    return 0


def _print_lists(figures: Figures) -> None:
    for title, lines in {
        f"files over {LONGEST_FILE} lines": figures.long_files,
        f"folders over {LARGEST_FOLDER} modules": figures.large_folders,
        "functions named by participles": figures.participles,
        "private access across objects": figures.private_accesses,
        "private names of drivers and of Python": figures.foreign_names,
    }.items():
        print(f"{title}: {len(lines)}", *sorted(lines), sep="\n  ")


def _check_out(commit: str, folder: Path) -> None:
    packed = subprocess.run(["git", "archive", commit, PACKAGE], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
