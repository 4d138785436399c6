"""Sentinels name the primary, also after a failover."""

import asyncio
import subprocess
from contextlib import contextmanager

import pytest
import redis as driver

from perdure import StoreError
from perdure.storage.contract import Filter
from perdure.testing.conformance.tools import job
from servers.kinds import KINDS
from servers.process import _free_port

from .helpers import client, opened


@contextmanager
def sentinel_of(kind, server, folder):
    """A Sentinel that watches a server and calls it `shop`."""
    port, file = _free_port(), folder / "sentinel.conf"
    file.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor shop 127.0.0.1 {server.process.port} 1\n")
    program = KINDS[kind](durable=False).command(folder, port, {})[0]
    process = subprocess.Popen([program, str(file), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with driver.Redis(port=port) as raw:
            yield raw, port
    finally:
        process.kill()
        process.wait()


async def until(condition):
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(_tried, condition):
            await asyncio.sleep(0.02)


def _tried(condition):
    try:
        return condition()
    except driver.RedisError:
        return False


async def test_the_primary_is_found_and_found_again_after_a_failover(kind, own, tmp_path):
    first, second = own(), own()
    with sentinel_of(kind, first, tmp_path) as (raw, port), client(second.url) as other:
        other.replicaof("127.0.0.1", first.process.port)
        await until(lambda: len(raw.sentinel_slaves("shop")) == 1)
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/shop/0?prefix=a"  # nobody answers at the first
        async with opened(url) as store:
            await store.enqueue([job()])
            await until(lambda: other.info("replication")["master_link_status"] == "up")
            await until(lambda: raw.sentinel_failover("shop"))
            await until(lambda: raw.sentinel_get_master_addr_by_name("shop")[1] == second.process.port)
            await until(lambda: other.info("replication")["role"] == "master")
            first.kill()
            await store.enqueue([job()])
            assert await store.count(Filter()) == 2
        with client(second.url) as raw_second:
            assert raw_second.hlen("{a}:rows") == 2


async def test_a_name_that_the_sentinels_do_not_know(kind, own, tmp_path):
    with sentinel_of(kind, own(), tmp_path) as (raw, port):
        await until(raw.ping)
        with pytest.raises(
            StoreError, match=r"127\.0\.0\.1:\d+/other/0\?prefix=perdure cannot be reached: No master found"
        ):
            async with opened(f"redis+sentinel://127.0.0.1:{port}/other"):
                pass
