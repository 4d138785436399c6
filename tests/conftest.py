import asyncio
import inspect
import logging
import signal

import pytest

pytest_plugins = ["tests.real_servers"]

# a shell that starts the tests in the background has them ignore Ctrl-C, and every process that they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """Our log says everything when a test begins, whatever one before it, or a command that it ran, has set."""
    log = logging.getLogger("holdfast")
    log.setLevel(logging.NOTSET)
    log.propagate, log.disabled = True, False
