"""The server's clock, counted here."""

import pytest

from perdure.core.clock import SECOND
from perdure.storage.mongo.connection import server_clock
from perdure.storage.mongo.connection.server_clock import AGAIN, ServerClock


class Machines:
    """A server and a machine whose clocks are moved by hand; a question takes `trip` microseconds there and back."""

    def __init__(self, monkeypatch):
        self.steady = 1_000_000_000
        self.server = self.shown = 1_800_000_000_000_000
        self.trip = 400
        monkeypatch.setattr(server_clock, "_steady", lambda: self.steady)
        monkeypatch.setattr(server_clock, "SYSTEM", self)

    def micros(self):
        return self.shown

    def pass_(self, micros):
        self.steady += micros
        self.server += micros
        self.shown += micros

    async def ask(self):
        self.pass_(self.trip // 2)
        told = self.server // 1000 * 1000
        self.pass_(self.trip // 2)
        return told


@pytest.fixture
def machines(monkeypatch):
    return Machines(monkeypatch)


async def test_clocks_that_agree_are_one(machines):
    clock = ServerClock(machines.ask)
    await clock.follow()
    for _ in range(20):
        machines.pass_(333_333)
        await clock.follow()
        assert clock() == machines.shown


async def test_a_server_that_is_ahead_is_followed(machines):
    machines.server += 3600 * SECOND
    clock = ServerClock(machines.ask)
    await clock.follow()
    assert abs(clock() - machines.server) <= 1_000


async def test_a_server_whose_clock_is_set_back_is_followed_within_seconds(machines):
    clock = ServerClock(machines.ask)
    await clock.follow()
    machines.server -= 60 * SECOND
    await clock.follow()
    assert clock() == machines.shown, "nobody has asked yet"
    machines.pass_(AGAIN)
    await clock.follow()
    assert abs(clock() - machines.server) <= 1_000


async def test_small_corrections_never_let_time_go_back(machines):
    machines.server += 3600 * SECOND
    clock = ServerClock(machines.ask)
    await clock.follow()
    before = clock()
    machines.pass_(AGAIN)
    machines.server -= AGAIN + 5_000  # slower than ours
    await clock.follow()
    assert clock() >= before


async def test_a_slow_answer_changes_nothing(machines):
    machines.server += 3600 * SECOND
    clock = ServerClock(machines.ask)
    await clock.follow()
    ahead = clock() - machines.server
    machines.pass_(AGAIN)
    machines.trip = 300_000
    await clock.follow()
    assert clock() - machines.server == ahead
