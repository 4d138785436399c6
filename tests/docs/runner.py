"""Runs the blocks of one page in order, and checks what they say about themselves."""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import inspect
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tokenize
import types
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import perdure

from .pages import Block, blocks_of
from .stand_ins import StandIns

_SAYS = re.compile(r"#\s*(?:(→)\s*|(raises)\s+(?=\w+: ))(.*\S)\s*$")
_TIMEOUT = 30
_PRINT = "print"


class PageFailed(AssertionError):
    """A block does not do what its page says."""


def run_page(path: Path, folder: Path) -> None:
    """Run what a page shows, in an empty folder."""
    blocks = [block for block in blocks_of(path) if block.runs or block.language == "console"]
    with StandIns() as stand_ins, Page(folder) as page:
        for block in blocks:
            page.run(replace(block, text=stand_ins.real(block.text)))
        page.finish()


class Page:
    """One page: a folder, a namespace, an event loop, and the workers that its console blocks started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._module = types.ModuleType("__main__")
        self._workers: list[tuple[Block, str, subprocess.Popen[str]]] = []
        self._runner = asyncio.Runner()
        self._checks: dict[tuple[str, int], str] = {}
        self._done: set[tuple[str, int]] = set()
        self._cleanup = ExitStack()

    def __enter__(self) -> Page:
        before = set(sys.modules)
        main, path = sys.modules["__main__"], list(sys.path)
        sys.modules["__main__"] = self._module
        sys.path.insert(0, str(self._folder))
        self._cleanup.callback(
            lambda: [sys.modules.pop(name) for name in set(sys.modules) - before if self._ours(name)]
        )
        self._cleanup.callback(sys.path.__setitem__, slice(None), path)
        self._cleanup.callback(sys.modules.__setitem__, "__main__", main)
        self._cleanup.callback(self._runner.close)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for _, _, process in self._workers:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self._cleanup.close()

    def run(self, block: Block) -> None:
        if block.language == "console":
            self._run_console(block)
        elif block.file is not None:
            self._write(block, block.file)
        else:
            self._run_python(block)

    def finish(self) -> None:
        """Stop the workers, and see that every expectation was met at least once."""
        for block, command, process in self._workers:
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate(timeout=_TIMEOUT)
            if process.returncode != 0:
                raise PageFailed(f"{block.page}:{block.line}: `{command}` ended with {process.returncode}:\n{printed}")
        missed = self._checks.keys() - self._done
        if missed:
            page, line = min(missed)
            raise PageFailed(f"{page}:{line}: never reached: {self._checks[min(missed)]}")

    # -- python --------------------------------------------------------------------------------------
    def _write(self, block: Block, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, "utf-8")
        importlib.invalidate_caches()
        dotted = name.removesuffix(".py").replace("/", ".")
        sys.modules.pop(dotted, None)
        importlib.import_module(dotted)

    def _run_python(self, block: Block) -> None:
        tree = ast.parse("\n" * (block.line - 1) + block.text, block.page)
        said = _said(block)
        self._checks |= {(block.page, line): text for line, (_, text) in said.items()}
        tree = ast.fix_missing_locations(_Checked(said).visit(tree))
        if said:
            raise PageFailed(f"{block.page}:{min(said)}: belongs to no simple statement: {said[min(said)][1]}")
        names = self._module.__dict__
        names |= {
            "__builtins__": builtins,
            "__value__": lambda value, line: self._see(block, line, repr(value)),
            "__print__": lambda line: lambda *words, **how: self._see(block, line, _printed(*words, **how)),
            "__raised__": lambda error, line: self._see(block, line, f"{type(error).__name__}: {error}", error),
        }
        code = compile(tree, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            self._runner.run(types.FunctionType(code, names)())
        else:
            exec(code, names)

    def _see(self, block: Block, line: int, seen: str, error: BaseException | None = None) -> None:
        expected = self._checks[block.page, line]
        if not fits(seen, expected):
            raise PageFailed(f"{block.page}:{line}: says\n    {expected}\nbut it is\n    {seen}") from error
        self._done.add((block.page, line))

    # -- console -------------------------------------------------------------------------------------
    def _run_console(self, block: Block) -> None:
        for command, expected in commands_of(block):
            words = shlex.split(command, comments=True)
            arguments = [sys.executable, *(["-m", "perdure"] if words[0] == "perdure" else []), *words[1:]]
            if words[0] not in ("perdure", "python"):
                raise PageFailed(f"{block.page}:{block.line}: only perdure and python can run here: {command}")
            if words[:2] == ["perdure", "worker"] and "--help" not in words:
                self._start_worker(block, command, arguments)
                continue
            done = subprocess.run(
                arguments, cwd=self._folder, env=self._environment(), capture_output=True, text=True, timeout=_TIMEOUT
            )
            printed = done.stdout + done.stderr
            if done.returncode != 0:
                raise PageFailed(f"{block.page}:{block.line}: `{command}` ended with {done.returncode}:\n{printed}")
            if expected and not fits(printed.strip(), expected):
                raise PageFailed(f"{block.page}:{block.line}: `{command}` says\n{expected}\nbut it printed\n{printed}")

    def _start_worker(self, block: Block, command: str, arguments: list[str]) -> None:
        process = subprocess.Popen(
            arguments,
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._workers.append((block, command, process))
        assert process.stdout is not None
        seen = ""
        while " started" not in seen:
            line = process.stdout.readline()
            if not line:
                raise PageFailed(f"{block.page}:{block.line}: `{command}` did not start:\n{seen}")
            seen += line

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("PERDURE_URL", "PYTEST_ADDOPTS")}
        package = str(Path(perdure.__file__).resolve().parents[1])  # the path to it may be relative to another folder
        if not any(
            plugin.name == "perdure" for plugin in entry_points(group="pytest11")
        ):  # a source tree, not installed
            kept["PYTEST_PLUGINS"] = "perdure.testing.plugin"
        return kept | {"PYTHONPATH": package, "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}

    def _ours(self, name: str) -> bool:
        module = sys.modules[name]
        places = [
            getattr(module, "__file__", None) or "",
            *getattr(module, "__path__", ()),
        ]  # a folder may be a package
        return any(place.startswith(str(self._folder)) for place in places)


def fits(seen: str, expected: str) -> bool:
    """Whether a text is as expected. `…` fits anything, with the white space around it; the rest of it counts as one."""
    pattern = ".*?".join(re.escape(" ".join(part.split())) for part in expected.split("…"))
    return re.fullmatch(pattern, " ".join(seen.split()), re.DOTALL) is not None


def commands_of(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it should print."""
    commands: list[tuple[str, str]] = []
    for line in block.text.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            commands.append((line[2:], ""))
        elif line.startswith("> "):
            commands[-1] = (commands[-1][0].removesuffix("\\") + line[2:], "")
        else:
            assert commands, f"{block.page}:{block.line}: a console block begins with `$ `"
            commands[-1] = (commands[-1][0], commands[-1][1] + line + "\n")
    return commands


def _said(block: Block) -> dict[int, tuple[str, str]]:
    """The expectations in the comments of a block, by line of the page."""
    said = {}
    for token in tokenize.generate_tokens(io.StringIO(block.text).readline):
        if token.type == tokenize.COMMENT and (found := _SAYS.match(token.string)):
            said[token.start[0] + block.line - 1] = (found[1] or found[2], found[3])
    return said


class _Checked(ast.NodeTransformer):
    """Puts the checks into the tree; takes what it has placed out of `said`."""

    def __init__(self, said: dict[int, tuple[str, str]]) -> None:
        self._said = said

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.stmt) or hasattr(node, "body") or node.end_lineno not in self._said:
            return self.generic_visit(node)
        line = node.end_lineno
        kind, text = self._said.pop(line)
        if kind == "raises":
            return _raising(node, line, text)
        if not isinstance(node, ast.Expr):
            self._said[line] = (kind, text)
            return node
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == _PRINT:
            value.func = _call("__print__", ast.Constant(line))
            return node
        node.value = _call("__value__", value, ast.Constant(line))
        return node


def _raising(node: ast.stmt, line: int, text: str) -> ast.stmt:
    source = (
        "try: pass\n"
        "except BaseException as __error__: __raised__(__error__, __line__)\n"
        "else: raise AssertionError(f'line {__line__} raised nothing')"
    )
    trying = ast.parse(source.replace("__line__", str(line))).body[0]
    assert isinstance(trying, ast.Try)
    trying.body = [node]
    return trying


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _printed(*words: object, **how: Any) -> str:
    text = io.StringIO()
    print(*words, **{**how, "file": text})
    return text.getvalue().rstrip("\n")
