"""`--quick`: the tests of the inner loop, on memory and SQLite. They are chosen by what they ask for, not by a list.

A test is left out when it runs on another store, or when it, a fixture of it, or a function of the tests that it calls
starts a server or a process. This is read from the names in their code. A server that is asked for nevertheless skips the
test. `tests/system` is left out whole: kills, outages and campaigns take their time. Tests that draw examples draw fewer.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

import servers

from . import real_servers

OTHER_STORES = frozenset((*servers.KINDS, "sqlite-in-memory", "sqlite+apsw"))
HEAVY = ("servers", "subprocess", "multiprocessing")  # modules
NAMES = frozenset(("create_subprocess_exec", "fork", "Popen", "ProcessPoolExecutor"))
OURS = ("tests.", "benchmarks.")
CAMPAIGNS = "tests.system."


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests that need no server and no process of their own")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        real_servers.run_without()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("quick"):
        return
    slow = [item for item in items if _needs_more(item)]
    config.hook.pytest_deselected(items=slow)
    left_out = set(slow)
    items[:] = [item for item in items if item not in left_out]


def _needs_more(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    if item.module.__name__.startswith(CAMPAIGNS):
        return True
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if any(isinstance(value, str) and value in OTHER_STORES for value in values):
        return True
    fixtures = [fixture.func for found in item._fixtureinfo.name2fixturedefs.values() for fixture in found[-1:]]
    return any(asks_for_more(function) for function in (item.function, *fixtures) if inspect.isfunction(function))


@cache
def asks_for_more(function: FunctionType) -> bool:
    """Whether this function, or one of the tests' functions that it calls, asks for a server or a process."""
    return any(_is_heavy(each) for each in _called(function, set()))


def _is_heavy(function: FunctionType) -> bool:
    for name in _names_in(function.__code__):
        value = function.__globals__.get(name)
        if name in NAMES or (isinstance(value, ModuleType) and value.__name__ in HEAVY):
            return True
    return False


def _called(function: FunctionType, seen: set[FunctionType]) -> Iterator[FunctionType]:
    """A function and all functions and methods of the tests that it names."""
    if function in seen or not _is_ours(function):
        return
    seen.add(function)
    yield function
    for name in _names_in(function.__code__):
        for called in _functions_of(function.__globals__.get(name)):
            yield from _called(called, seen)


def _functions_of(value: Any) -> list[FunctionType]:
    if inspect.isfunction(value):
        return [inspect.unwrap(value)]
    if inspect.isclass(value) and _is_ours(value):
        classes = [one for one in value.__mro__ if _is_ours(one)]
        return [member for one in classes for member in vars(one).values() if inspect.isfunction(member)]
    return []


def _is_ours(value: FunctionType | type) -> bool:
    return value.__module__.startswith(OURS) and value.__module__ != real_servers.__name__


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
