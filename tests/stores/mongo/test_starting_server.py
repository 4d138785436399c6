"""A connection that was made while the server was starting serves nobody, and must not be kept."""

import asyncio

import pytest
from pymongo.errors import PyMongoError

import servers
from perdure.storage.mongo.address import MongoAddress
from perdure.storage.mongo.connection.operations import find
from perdure.storage.mongo.connection.server import Server
from perdure.storage.urls import parse
from servers.mongo import mongo
from servers.process import launch
from tests.support.real_servers import decline

from .test_members import Member, Members


@pytest.fixture
def starting(tmp_path):
    """A server that belongs to no set yet: until then it has no sessions."""
    try:
        program = Member(mongo(durable=False)._program)
    except servers.NotAvailable as missing:
        decline("mongo", missing)
    process = launch(program, {}, tmp_path)
    try:
        yield Members([process])
    finally:
        process.close(wait=False)


@pytest.mark.parametrize("verb", ["read", "write"])
async def test_a_connection_without_sessions_is_replaced(starting, verb):
    (port,) = starting.processes
    address = parse(starting.url("jobs", port)).server
    assert isinstance(address, MongoAddress)
    server = Server(address, limit=60.0)
    try:
        await server.command("hello")  # which leaves a connection in the driver's pool
        await asyncio.to_thread(starting.initiate)
        await asyncio.to_thread(starting.primary)
        server.retry_for = 5.0
        first = server.client
        assert await getattr(server, verb)(lambda: find("jobs", {})) == []
        assert server.client is not first
        second = server.client
        assert await getattr(server, verb)(lambda: find("jobs", {})) == []
        assert server.client is second, "a client whose connections have sessions stays"
    finally:
        await server.close()
    with pytest.raises(PyMongoError):
        await first.admin.command("ping")  # it was closed
