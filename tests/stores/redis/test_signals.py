"""Signals between processes, and an ear that is cut off."""

import asyncio

import pytest

from perdure.core.lifecycle import Succeeded
from perdure.storage.redis.connection import signals
from perdure.testing.conformance.reading.signals import Ear
from perdure.testing.conformance.tools import enqueue_and_claim, job, report

from .helpers import Proxy, client, keys, opened


async def test_another_process_wakes(url):
    async with opened(url) as here, opened(url) as there:
        ready, other, changed = (
            Ear(here, "ready", frozenset({"ünï"})),
            Ear(here, "ready", frozenset({"other"})),
            Ear(here, "changed"),
        )
        await _heard_by(url, 2)
        for ear in (ready, other, changed):
            await ear.hears("the beginning: something may have been missed")
        await there.enqueue([job(queue="ünï")])
        await ready.hears("an enqueue elsewhere")
        record = await enqueue_and_claim(there)
        await report(there, record.id, Succeeded())
        await changed.hears("an end elsewhere")
        await there.signal(["other"])
        await other.hears("a signal from elsewhere")


async def test_an_ear_that_was_cut_off_hears_again(url):
    async with opened(url) as here, opened(url) as there:
        ear = Ear(here, "ready")
        await _heard_by(url, 1)
        await ear.hears("the beginning")
        for _ in range(2):
            with client(url) as raw:
                assert raw.client_kill_filter(_type="pubsub") >= 1
            await ear.hears("the ear's return: something may have been missed")
            await there.enqueue([job()])
            await ear.hears("an enqueue elsewhere")


async def test_a_restart_leaves_nobody_deaf(own):
    server = own()
    url = server.fresh()
    async with opened(url) as here, opened(url) as there:
        ear = Ear(here, "ready")
        await _heard_by(url, 1)
        await ear.hears("the beginning")
        server.kill()
        server.restart()
        await ear.hears("the ear's return")
        await there.enqueue([job()])
        await ear.hears("an enqueue elsewhere")


async def test_a_line_that_is_silent_but_open_is_noticed(url, monkeypatch):
    """A host that vanished without a word leaves a connection that looks alive."""
    monkeypatch.setattr(signals, "CHECK_EVERY", 0.1)
    monkeypatch.setattr(signals, "ANSWER_WITHIN", 0.1)
    port = int(url.partition("/0?")[0].rpartition(":")[2])
    async with Proxy(port) as proxy, opened(proxy.url(url)) as here, opened(url) as there:
        ear = Ear(here, "ready")
        await ear.hears("the beginning")
        await asyncio.sleep(0.3)  # questions that are answered do no harm
        proxy.mute()
        await ear.hears("the ear's return")
        await _heard_by(url, 1)
        await there.enqueue([job()])
        await ear.hears("an enqueue elsewhere")


@pytest.mark.parametrize("topic", ["ready", "changed"])
async def test_a_second_topic_is_heard_on_the_same_connection(url, topic):
    async with opened(url) as here, opened(url) as there:
        first = Ear(here, "changed" if topic == "ready" else "ready")
        await first.hears("the beginning")
        second = Ear(here, topic)
        await second.hears("its own beginning")
        record = await enqueue_and_claim(there)
        await report(there, record.id, Succeeded())
        await second.hears("what happened elsewhere")
        with client(url) as raw:
            assert sum("sub=2" in str(each) or each.get("sub") == "2" for each in raw.client_list(_type="pubsub")) >= 1


async def _heard_by(url, channels):
    """Until the server knows so many of the store's channels to have an ear."""
    with client(url) as raw:
        async with asyncio.timeout(10):
            while len(raw.pubsub_channels(keys(url).ready.replace("ready", "*").replace("{", "\\{"))) < channels:
                await asyncio.sleep(0.005)
