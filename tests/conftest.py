import asyncio
import gc
import inspect
import logging
import signal
import warnings

import pytest
from xdist.scheduler import LoadScopeScheduling

from perdure.core import log_limit

pytest_plugins = [
    "tests.support.real_servers",
    "tests.support.orphans",
    "tests.support.quick",
    "tests.support.exploring",
    "tests.support.driver_sockets",
    "tests.support.machine",
]

# a shell that starts the tests in the background has them ignore Ctrl-C, and every process that they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# files whose tests share something costly, or would be in each other's way: one process of the run has all of each
TOGETHER = (
    "tests/cli/test_demo.py",
    "tests/stores/mongo/test_members.py",
    "tests/stores/postgres/test_pooler.py",
    "tests/typing/test_public_api.py",
    "tests/typing/test_typing.py",
)


class OneByOne(LoadScopeScheduling):
    """Tests go to the processes one by one, but for those that stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return OneByOne(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What thousands of tests are made of stays until the end: the garbage collector need not look through it every time."""
    gc.collect()
    gc.freeze()


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
    log = logging.getLogger("perdure")
    log.setLevel(logging.NOTSET)
    log.propagate, log.disabled = True, False
    log_limit.of_process.clear()


@pytest.fixture(autouse=True)
def _forgotten_connections(request: pytest.FixtureRequest):
    """Collect what pymongo left behind in this test, so that no later test is blamed for it. The cases of conformance lose
    no connection."""
    yield
    if "mongo" in request.node.nodeid and "conformance" not in request.node.nodeid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
