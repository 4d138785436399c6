import pytest

from perdure import Perdure
from tests.support.addresses import OF_EACH_KIND
from tests.support.real_servers import server


@pytest.fixture(params=[kind for kind in OF_EACH_KIND if kind.startswith("postgres")])
def kind(request):
    return request.param


@pytest.fixture
def dsn(kind):
    """The database, as a driver is told of it."""
    return server(kind).url


@pytest.fixture
def app(kind):
    return Perdure(server(kind).fresh())


@pytest.fixture
def task(app):
    @app.task
    async def task(a: object = 0) -> object:
        return a

    return task
