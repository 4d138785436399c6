"""On a cluster all keys live on one node: their hash tag says so, and the store finds its way there."""

import time

import pytest

import servers
from perdure.storage.urls import opener
from perdure.testing import ManualClock, conformance
from perdure.testing.conformance.tools import job

from .helpers import claim, client, opened

CASES = [case for case in conformance.cases() if not str(case).startswith(("transaction", "texts"))][::4]


@pytest.fixture
def node(own):
    """Starts nodes that know no slots yet. Their second port is 10,000 higher, which not every free port allows."""

    def start():
        for _ in range(20):
            try:
                return own(cluster_enabled="yes")
            except servers.process.NotAnswering:
                continue
        raise AssertionError("no free port is low enough")

    return start


async def test_the_cases_on_a_cluster_of_one(node):
    """The server itself checks here that a script uses only keys of its own slot."""
    server = node()
    with client(server.url) as raw:
        _serve(raw, range(16384))
        _until_up(raw)

    async def make():
        clock = ManualClock()
        store = opener(server.fresh(), clock=clock, durability="relaxed")()
        await store.open()
        return store, clock

    for case in CASES:
        await conformance.run(case, make)


async def test_a_store_finds_the_node_of_its_keys(node):
    here, there = node(), node()
    with client(here.url) as one, client(there.url) as other:
        _serve(one, range(8192))
        _serve(other, range(8192, 16384))
        one.execute_command("CLUSTER", "MEET", "127.0.0.1", there.process.port)
        for raw in (one, other):
            _until_up(raw)
        found = set()
        for prefix in ("a", "b", "c", "d"):  # whose slots lie on both nodes
            async with opened(f"{here.url}?prefix={prefix}") as store, opened(f"{there.url}?prefix={prefix}") as same:
                await store.enqueue([job()])
                (record,) = await same.claim(claim())
                assert record.attempt == 1
            found.add(bool(one.exists(f"{{{prefix}}}:rows")) if _is_on(one, prefix) else None)
        assert found == {True, None}


def _is_on(raw, prefix):
    return raw.cluster("KEYSLOT", f"{{{prefix}}}:rows") < 8192


def _serve(raw, slots):
    raw.execute_command("CLUSTER", "ADDSLOTS", *slots)


def _until_up(raw):
    deadline = time.monotonic() + 30
    while raw.cluster("INFO").get("cluster_state") != "ok":
        assert time.monotonic() < deadline, "the cluster does not come up"
        time.sleep(0.05)
