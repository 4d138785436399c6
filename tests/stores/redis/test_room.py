"""Room for so many at once."""

from __future__ import annotations

import asyncio

from perdure.storage.redis.connection import ConnectionLimit


async def test_places_are_given_in_the_order_they_were_asked_for():
    room, came = ConnectionLimit(2), []
    assert (room.taken(), room.taken(), room.taken()) == (True, True, False)

    async def comes(number):
        await room.take(10)
        came.append(number)

    waiting = [asyncio.create_task(comes(number)) for number in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    room.leave()
    assert not room.taken(), "it is the first one's who waits"
    room.leave()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert came == [0, 2]
    room.leave()
    waiting[3].cancel()  # it was given a place just before, and passes it on
    await asyncio.wait(waiting)
    assert came == [0, 2]
    assert room.taken()
    assert not room.taken()


async def test_a_place_that_nobody_waits_for_is_free():
    room = ConnectionLimit(1)
    await room.take(10)
    waiting = asyncio.create_task(room.take(10))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    room.leave()
    assert room.taken()
