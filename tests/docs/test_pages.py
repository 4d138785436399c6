"""What must hold for the pages as a whole: words, links, the table of contents, every public name shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import perdure
import perdure.testing

from .pages import ROOT, Block, all_blocks, blocks_of, name_of, paths

PROMISE = (
    "at-least-once execution; at most one accepted completion per attempt; "
    "exactly-once *effects* when they are written in the completion's own transaction"
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^( *)(`{3,}).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
# words that have another meaning in prose are not listed: lock, message, data, save, send …
_NEVER = (
    "exactly-once delivery",
    "visibility timeout",
    "task instance",
    "entrypoint",
    "cron job",
    "requeue",
    "dequeue",
)


def test_the_promise_is_in_the_readme_word_by_word() -> None:
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert PROMISE in text


@pytest.mark.parametrize("path", paths(), ids=name_of)
def test_one_word_per_thing(path: Path) -> None:
    prose = path.read_text("utf-8").lower()
    if path.name != "glossary.md":  # it lists the words that are not used
        assert [word for word in _NEVER if word in prose] == []


@pytest.mark.parametrize("path", paths(), ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in _LINK.findall(_CODE.sub("", path.read_text("utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.exists(), f"{name_of(path)} links to {target}"
        if anchor and page.suffix == ".md":
            assert anchor in _anchors(page), f"{name_of(path)} links to {target}"


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in paths() if path.name != "README.md"}
    measured = {page for page in listed | there if page.startswith("benchmarks/")}  # written by ./dev bench
    assert listed - measured == there - measured


def test_every_public_name_has_an_example_that_runs() -> None:
    shown = {name for block in all_blocks() if block.runs for name in _names(block)}
    assert sorted({*perdure.__all__, *perdure.testing.__all__} - shown) == []


def test_every_command_is_shown() -> None:
    from perdure.cli.root import COMMANDS

    shown = "".join(
        block.text for block in blocks_of(ROOT / "docs/guide/command-line.md") if block.language == "console"
    )
    assert [name for name in COMMANDS if f"$ perdure {name}" not in shown] == []


def _names(block: Block) -> set[str]:
    tree = ast.parse(block.text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower())).strip("-") for head in heads}
