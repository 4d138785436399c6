"""The servers of these tests: the run's own of both kinds, and ones that may be killed."""

import pytest

import servers
from tests.support.real_servers import decline, server

KINDS = ["valkey", "redis"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def url(kind):
    """A prefix of its own on the run's server."""
    return server(kind).fresh()


@pytest.fixture
def own(kind, tmp_path):
    """Starts servers with settings of their own, which may be killed: `own(maxmemory="8mb")`."""
    started = []

    def start(**settings):
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        try:
            started.append(servers.start(kind, within=tmp_path, settings=named))
        except servers.NotAvailable as missing:
            decline(kind, missing)
        if started[-1].process is None:
            pytest.skip("the server that PERDURE_TEST_REDIS names is not ours to change")
        return started[-1]

    yield start
    for each in started:
        each.stop()
