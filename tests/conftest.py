import asyncio
import inspect
import logging

import pytest

pytest_plugins = ["tests.real_servers"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each in a fresh event loop with debug off."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures = pyfuncitem.funcargs
    arguments = {name: fixtures[name] for name in inspect.signature(pyfuncitem.obj).parameters if name in fixtures}
    asyncio.run(pyfuncitem.obj(**arguments), debug=False)
    return True


@pytest.fixture(autouse=True)
def _log_as_it_was():
    """A test that sets the level of our log, as the command line does, sets it for itself alone."""
    log = logging.getLogger("holdfast")
    level, propagate = log.level, log.propagate
    yield
    log.setLevel(level)
    log.propagate = propagate
