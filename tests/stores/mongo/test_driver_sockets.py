"""The tests ignore the sockets that pymongo forgets, and no others."""

import asyncio
import gc
import socket
import warnings

import pytest

pymongo = pytest.importorskip("pymongo")


@pytest.fixture
def deaf_port():
    """A port whose server accepts nobody: whoever connects waits."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for each in waiting:
            each.close()


async def test_a_client_that_is_closed_while_it_connects_leaves_no_warning(deaf_port):
    client = pymongo.AsyncMongoClient(port=deaf_port, directConnection=True)
    asking = asyncio.create_task(client.admin.command("ping"))
    await asyncio.sleep(0.2)  # no event says that the driver has begun to connect
    asking.cancel()
    await asyncio.wait([asking])
    await client.close()
    del client, asking
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert [warning for warning in caught if issubclass(warning.category, ResourceWarning)] == []


async def test_other_sockets_still_warn():
    left = [socket.socket()]
    with pytest.warns(ResourceWarning):
        left.clear()
