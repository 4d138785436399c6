"""Pages of the documentation as a reader copies them: fenced blocks, in order.

Conventions (docs/index.md tells readers of them):

- `python`          runs. The blocks of a page share one namespace; `await` works at the top level.
- first line `# shop/tasks.py`   the block is a file: it is written there and imported.
- `value  # → text`              the statement's value is checked: its repr, or what print() printed. `…` fits anything.
- `call()  # raises Kind: text`  the statement must raise this.
- `console`         lines after `$ ` run: `perdure …` and `python …`; lines below are what they print. `…` fits anything.
                    `$ perdure worker …` stays until the page ends, and must then stop with exit code 0 on SIGTERM.
- `postgresql://localhost/shop`  in a block is a database of a real server (see stand_ins.py), empty when the page begins.
- `python no-run: reason`        does not run. There is a limit to how many.
- `sh`, `text`, `sql` …          for reading only; `sh` never shows a command of perdure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*)(?P<rest>[^`\n]*)$")
_FILE = re.compile(r"# ((?:\w+/)*\w+\.py)")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands and what it says."""

    page: str
    line: int  # of its first line of code
    language: str
    rest: str
    text: str

    @property
    def runs(self) -> bool:
        return self.language == "python" and not self.rest.startswith("no-run")

    @property
    def file(self) -> str | None:
        """The file that this block is, if its first line says so."""
        named = _FILE.fullmatch(self.text.split("\n", 1)[0])
        return named[1] if named else None


def paths() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a page, top down."""
    blocks: list[Block] = []
    fence: re.Match[str] | None = None
    begun, lines = 0, list[str]()
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if fence is None:
            if fence := _FENCE.match(line):
                begun, lines = number + 1, []
        elif line.strip() == fence["ticks"]:
            text = "\n".join(lines) + "\n"
            blocks.append(Block(name_of(path), begun, fence["language"], fence["rest"].strip(), text))
            fence = None
        else:
            lines.append(line.removeprefix(fence["indent"]))
    assert fence is None, f"{name_of(path)}:{begun}: this block never ends"
    return blocks


def all_blocks() -> list[Block]:
    return [block for path in paths() for block in blocks_of(path)]
