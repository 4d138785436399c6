"""A move that was killed anywhere is made again, and ends as if nothing had happened."""

import signal
import subprocess
import sys
from inspect import iscoroutinefunction

import pytest

from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, decide
from perdure.errors import StoreError
from perdure.storage.contract import Claim, Filter, Want
from perdure.testing.conformance.tools import job
from perdure.transfer import entities
from perdure.transfer.quiesce import Quiesce
from perdure.transfer.transfer import move
from tests.cli.conftest import environment
from tests.support.addresses import ON_SERVERS

from .conftest import silent


class Killed(BaseException):
    """The end of the process, as far as the move can tell."""


class Mortal:
    """A store whose n-th call is its last."""

    def __init__(self, inner, calls):
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name):
        real = getattr(self._inner, name)
        if not iscoroutinefunction(real):
            return real

        async def call(*arguments, **options):
            self._calls.append(name)
            if len(self._calls) == self._calls.limit:
                raise Killed
            return await real(*arguments, **options)

        return call


class Calls(list):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(entities, "FIRST_PAGE", 8)
    monkeypatch.setattr(entities, "GROWTH", 1)


async def test_killed_at_any_call(house, small_pages, monkeypatch):
    """Every call to either store is once the last one. Nothing is given back, as after kill -9."""

    async def nobody_gives_back(stillness):
        pass

    async with house.open(house.url("sqlite")) as source:
        await house.fill(source)
        before, paused = await house.contents(source), await house.paused(source)
        limit = 1
        while True:
            async with house.open(house.url("sqlite")) as target:
                calls = Calls(limit)
                with monkeypatch.context() as patch:
                    patch.setattr(Quiesce, "give_up", nobody_gives_back)
                    try:
                        await move(Mortal(source, calls), Mortal(target, calls), silent)
                    except Killed:
                        pass
                    else:
                        break
                await move(source, target, silent)
                assert await house.contents(target) == before, f"killed at call {limit}: {calls[-1]}"
                assert await house.paused(target) == paused, f"killed at call {limit}: {calls[-1]}"
            for row in await source.queues():
                await source.pause(row.settings.name, row.settings.name in paused)
            limit += 1
        assert limit > 40


@pytest.mark.parametrize("name", ["sqlite", *ON_SERVERS])
async def test_a_process_that_is_killed(house, name):
    """`perdure promote` is killed with -9 in the middle, and given the same command again."""
    here = house.url("sqlite")
    there = f"sqlite:///{house.folder}/there.db" if name == "sqlite" else house.url(name)
    house.clock.set(house.clock.now().replace(year=2020))
    async with house.open(here) as source:
        for _ in range(4):
            await source.enqueue([job(queue="mail") for _ in range(500)])
        await source.enqueue([job(queue="held")])
        await source.pause("held", True)
        before = await house.contents(source)
    program = f"""
import os, signal, sys
from perdure.transfer.entities import Jobs
from perdure.cli import main

real, calls = Jobs.bring, []

async def bring(self, store, jobs):
    calls.append(jobs)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    await real(self, store, jobs)

Jobs.bring = bring
sys.argv = ["perdure", "promote", {here!r}, {there!r}]
main()
"""
    killed = subprocess.run([sys.executable, "-c", program], env=environment(), timeout=60)
    assert killed.returncode == -signal.SIGKILL
    async with house.open(there) as target:
        assert 0 < await target.count(Filter()) < 2001
    command = [sys.executable, "-m", "perdure", "promote", here, there]
    done = subprocess.run(command, env=environment(), timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "had been moved before" in done.stdout
    async with house.open(there) as target, house.open(here) as source:
        assert await house.contents(target) == before
        assert await house.paused(target) == {"held"}
        assert await house.paused(source) == {"held", "mail"}


async def test_given_up(house, small_pages):
    """An error in the middle lets the source go on; what has changed there since is carried by the next run."""
    async with house.open(house.url("sqlite")) as source, house.open(house.url("sqlite")) as target:
        jobs = [job() for _ in range(20)]
        await source.enqueue(jobs)
        await source.pause("other", True)

        broken = Mortal(target, Calls(limit=0))

        async def restore(jobs):
            if await target.count(Filter()) >= 8:
                raise StoreError("the connection broke")
            await target.restore(jobs)

        broken.restore = restore
        with pytest.raises(StoreError, match="the connection broke"):
            await move(source, broken, silent)
        assert await house.paused(source) == {"other"}
        assert await target.count(Filter()) == 8
        first = (await source.get([jobs[0].id]))[0]
        await source.apply([decide(first, Cancelled())])
        moved = await move(source, target, silent)
        assert moved.already_there == 8
        assert await house.contents(source) == await house.contents(target)
        assert (await target.get([jobs[0].id]))[0].state is State.CANCELLED
        assert moved.paused == ("other",)


async def test_worked_on_at_the_target(house):
    async with house.open(house.url("sqlite")) as source, house.open(house.url("sqlite")) as target:
        await source.enqueue([job()])
        await move(source, target, silent)
        (claimed,) = await target.claim(Claim("w", 1, (Want(1),)))
        house.clock.advance(3600)
        with pytest.raises(StoreError, match=f"job {claimed.id} .* has been worked on at the target"):
            await move(source, target, silent)
