"""Connections that are taken and given back."""

from __future__ import annotations

import psycopg
from psycopg.errors import TooManyConnections

from perdure.storage.postgres.connection.pool import Pool


async def test_one_that_comes_back_while_no_other_can_be_opened_is_taken(own_url):
    opened: list[psycopg.AsyncConnection] = []

    async def connect() -> psycopg.AsyncConnection:
        if opened:
            pool.give(opened[0])
            raise TooManyConnections("sorry, too many clients already")
        opened.append(await psycopg.AsyncConnection.connect(own_url.partition("?")[0]))
        return opened[0]

    pool = Pool(connect, 3)
    try:
        first = await pool.take(1)
        assert await pool.take(1) is first
        pool.give(first)
    finally:
        await pool.close(1)
