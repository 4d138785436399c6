"""`perdure demo`: it runs by itself, and its account holds."""

import io
import re
import subprocess
import sys

from perdure.cli.commands.demo.screen import Screen

from .conftest import environment


def demo(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "perdure", "demo", *arguments],
        env=environment(TMPDIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


def test_the_demo_and_its_account(tmp_path):
    done = demo("--jobs", "300", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    claims = re.findall(r"^   ✓ (.*)$", done.stdout, re.MULTILINE)
    assert len(claims) >= 10
    assert "✗" not in done.stdout
    assert re.search(r"kill -9 worker-2: it held [1-9]", done.stdout)
    assert re.search(r"all 300 jobs are on record, none was lost", done.stdout)
    assert re.search(r"(\d+) receipts for \1 charges, exactly one each", done.stdout)
    assert "4 dead" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_never_hangs(tmp_path):
    done = demo("--jobs", "100000", "--deadline", "3", folder=tmp_path)
    assert done.returncode == 1
    assert "not done within 3 s, during: " in done.stdout


def test_screen_without_utf8():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    screen = Screen(out)
    screen.section("One", "Why — because.")
    screen.live("half", last=True)
    screen.check(True, "held")
    screen.check(False, screen.bar(1, 2, width=4))
    out.seek(0)
    assert out.read().splitlines() == ["", "1. One", "   Why ? because.", "   half", "   ok held", "   FAILED ##.."]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_screen_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Screen(Terminal())
    screen.live("long line")
    screen.live("short")
    screen.line("next")
    screen.check(True, "held")
    assert screen._out.getvalue() == "\r   long line\r   short    \nnext\n   \x1b[32m✓\x1b[0m held\n"


def test_no_color_is_obeyed(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(Terminal())
    screen.section("One", "Why.")
    screen.live("alive")
    assert "\x1b" not in screen._out.getvalue()
    assert "\r" in screen._out.getvalue()
