"""The servers of a test run: one of each kind, started when a test first asks for it and shared by all processes of the run.

A server that cannot be had skips the test, and the summary says so aloud. Where every server can be had, on Linux x86-64, a
missing one is a failure.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import servers
from perdure import StoreError
from perdure.storage.urls import parse

MISSING = "server not available"
WITHOUT = "the run is without servers"
_folder: Path | None = None
_running: dict[str, servers.Server] = {}


def run_without() -> None:
    """Start no server in this run: whoever asks for one is skipped."""
    servers.start = servers.shared = lambda *_, **__: pytest.skip(WITHOUT)


def server(kind: str) -> servers.Server:
    """The run's server of this kind. Tests that kill servers start one of their own: `servers.start(kind)`."""
    if kind not in _running:
        assert _folder is not None, "the run has not begun"
        try:
            _running[kind] = servers.shared(kind, _folder)
        except servers.NotAvailable as missing:
            decline(kind, missing)
    return _running[kind]


def kinds_with_a_store() -> list[str]:
    """The kinds of servers that this version of Perdure has a store for."""
    kinds = [kind for kind in servers.KINDS if kind != "postgres-older" or servers.older_postgres()]
    return [kind for kind in kinds if _has_a_store(servers.scheme(kind))]


def _has_a_store(scheme: str) -> bool:
    try:
        parse(f"{scheme}://127.0.0.1/test")
    except StoreError as refused:
        return "not in this version" not in str(refused)
    return True


def decline(kind: str, missing: Exception) -> None:
    """Skip for want of a server, or fail where there must be one."""
    told = f"{MISSING}: {kind}: {missing}"
    if _always_available(kind):
        pytest.fail(told, pytrace=False)
    pytest.skip(told)


def _always_available(kind: str) -> bool:
    if sys.platform != "linux" or platform.machine() != "x86_64" or kind == "postgres-older":
        return False
    return kind != "redis" or sys.version_info < (3, 13)


@pytest.fixture(scope="session", autouse=True)
def _servers_of_the_run(tmp_path_factory):
    global _folder
    folder = tmp_path_factory.getbasetemp()
    _folder = folder.parent if folder.name.startswith("popen-") else folder  # workers of one run have one parent
    yield
    for kind in list(_running):
        _running.pop(kind).stop(wait=False)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter):
    reasons = {
        str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        for report in terminalreporter.stats.get("skipped", ())
    }
    for reason in sorted(reason for reason in reasons if MISSING in reason):
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(reason.removeprefix("Skipped: "), red=True, bold=True)
