"""The two sides: a commit in a temporary worktree, and the working tree, each with the environment of its processes."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..contender import ROOT

PACKAGE = "src/perdure/__init__.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Unusable(Exception):
    """A side cannot be measured; the text says why."""


@dataclass(frozen=True)
class Side:
    """`environment` is that of every process that measures this side."""

    letter: str
    title: str
    environment: Mapping[str, str]


@contextmanager
def both_sides(base: str, extra: Mapping[str, str]) -> Iterator[tuple[Side, Side]]:
    """A is the commit `base`; B is the working tree, with the `extra` environment variables."""
    commit = _commit_of(base)
    with _checked_out(commit) as tree:
        # Bytecode of the temporary worktree is of no use to anybody later.
        bytecode = {"PYTHONPYCACHEPREFIX": str(tree.parent / "bytecode")}
        name = "" if commit.startswith(base) else f" ({base})"
        sides = (
            Side("A", f"{_short(commit)}{name}", _environment(tree, bytecode)),
            Side("B", ", ".join([_working_tree(), *(f"{key}={value}" for key, value in extra.items())]),
                 _environment(ROOT, extra)),
        )  # fmt: skip
        for side, root in zip(sides, (tree, ROOT), strict=True):
            _check(side, root)
        yield sides


def _commit_of(base: str) -> str:
    try:
        commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip() or "this repository has no such commit, branch or tag"
        raise Unusable(f"cannot compare with {base}: {why}") from None
    except FileNotFoundError:
        raise Unusable("git is not installed: there is nothing to check out") from None
    try:
        _git("cat-file", "-e", f"{commit}:{PACKAGE}")
    except subprocess.CalledProcessError:
        raise Unusable(f"cannot compare with {base}: it has no {PACKAGE}") from None
    return commit


def _working_tree() -> str:
    changed = _git("status", "--porcelain", "--", "src")
    return f"the working tree at {_short('HEAD')}" + (", with uncommitted changes in src" if changed else "")


def _short(commit: str) -> str:
    return _git("rev-parse", "--short", commit)


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """A worktree of that commit, removed at the end however that comes."""
    with tempfile.TemporaryDirectory(prefix="perdure-compare-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder, "base")
        try:
            _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
            yield tree
        finally:
            with _undisturbed():
                subprocess.run(
                    ["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, capture_output=True, check=False
                )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not interrupt the cleaning up after the first."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(root: Path, extra: Mapping[str, str]) -> dict[str, str]:
    path = [str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **extra}


def _check(side: Side, root: Path) -> None:
    """Its processes import Perdure from its own checkout. Compiles all of that, so that no measurement has to."""
    compile_all = [sys.executable, "-m", "compileall", "-q", str(root / "src")]
    subprocess.run(compile_all, cwd=ROOT, env=side.environment, capture_output=True, check=False)
    question = [sys.executable, "-c", "import perdure; print(perdure.__file__)"]
    done = subprocess.run(question, cwd=ROOT, env=side.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unusable(f"side {side.letter} cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    if not Path(done.stdout.strip()).resolve().is_relative_to(root.resolve()):
        raise Unusable(f"side {side.letter} would measure {done.stdout.strip()} instead of {root}")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
