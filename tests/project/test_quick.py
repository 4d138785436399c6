"""`--quick` leaves out what starts servers and processes, and keeps the rest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import servers
from tests.support import quick
from tests.support.addresses import address


def _starts_a_process():
    subprocess.run(["true"], check=True)


class _Started:
    def begin(self):
        _starts_a_process()


class _StartedToo(_Started):
    """Inherits it."""


def _starts_one_in_a_method():
    _Started().begin()


def _starts_one_in_an_inherited_method():
    _StartedToo().begin()


def _starts_one_in_an_inner_function():
    def inner():
        return _starts_a_process()

    return inner


def _forks():
    os.fork()


def _starts_a_server():
    servers.start("valkey")


def _takes_any_store(tmp_path):
    return address("memory", tmp_path)


def _reads(path):
    return Path(path).read_text()


@pytest.mark.parametrize(
    "function",
    [
        _starts_a_process,
        _starts_one_in_a_method,
        _starts_one_in_an_inherited_method,
        _starts_one_in_an_inner_function,
        _forks,
        _starts_a_server,
    ],
)
def test_left_out(function):
    assert quick.asks_for_more(function)


@pytest.mark.parametrize("function", [_takes_any_store, _reads])
def test_kept(function):
    assert not quick.asks_for_more(function)
