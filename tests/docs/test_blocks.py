"""Every code block of the README and the docs runs, page by page."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pages import all_blocks, name_of, paths
from .runner import fits, run_page

NO_RUN_LIMIT = 0


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, no store in the environment, and a log that says nothing on its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_URL", raising=False)
    logging.getLogger("perdure").setLevel(logging.CRITICAL)
    yield tmp_path
    logging.getLogger("perdure").setLevel(logging.NOTSET)


@pytest.mark.parametrize("path", paths(), ids=name_of)
def test_a_page_does_what_it_says(path: Path, fresh: Path) -> None:
    run_page(path, fresh)


def test_blocks_that_do_not_run_are_few_and_say_why() -> None:
    idle = [block for block in all_blocks() if block.language == "python" and not block.runs]
    assert len(idle) <= NO_RUN_LIMIT
    assert all(block.rest.removeprefix("no-run").strip(" :") for block in idle)


def test_every_block_says_its_language() -> None:
    known = {"python", "console", "sh", "sql", "text", "toml", "ini", "mermaid", "json", "yaml"}
    strange = [f"{block.page}:{block.line} {block.language!r}" for block in all_blocks() if block.language not in known]
    assert not strange


def test_shell_blocks_hide_no_command_of_perdure() -> None:
    for block in all_blocks():
        if block.language in ("sh", "text"):
            hidden = [line for line in block.text.splitlines() if line.startswith(("perdure ", "$ perdure "))]
            assert not hidden, f"{block.page}:{block.line} belongs into a console block: {hidden}"


# ---- the runner itself: an example that cannot fail proves nothing
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 + 1  # → 3\n", "says"),
        ("print('a')  # → b\n", "says"),
        ("int('x')  # raises KeyError: …\n", "says"),
        ("int('1')  # raises ValueError: …\n", "raised nothing"),
        ("def never():\n    1  # → 1\n", "never reached"),
        ("x = 1  # → 1\n", "belongs to no simple statement"),
    ],
)
def test_a_wrong_example_fails(code: str, told: str, fresh: Path) -> None:
    page = fresh / "page.md"
    page.write_text(f"# Page\n\n```python\n{code}```\n")
    with pytest.raises(AssertionError, match=told):
        run_page(page, fresh)


def test_a_right_example_passes(fresh: Path) -> None:
    page = fresh / "page.md"
    page.write_text(
        "```python\n# module.py\nX = 2\n```\n"
        "```python\nimport asyncio\nfrom module import X\nasync def f():\n    X + 1  # → 3\nawait f()\n"
        "print('a', X)  # → a 2\nint('x')  # raises ValueError: invalid literal …\n```\n"
        '```console\n$ python -c "print(1); print(2)"\n1\n…\n```\n'
    )
    run_page(page, fresh)


def test_three_dots_fit_anything() -> None:
    assert fits("a  b\nc", "a b …")
    assert fits("ID STATE", "ID … STATE …")
    assert fits("job 0197-abc is dead", "job … is dead")
    assert not fits("job 1 is dead.", "job … is dead")
