"""The loop-block detector: it names the job and the line, while the loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import re
import threading

import pytest

from perdure import Perdure


@pytest.mark.parametrize("waits_first", [False, True])
async def test_it_names_the_job_and_the_line_while_it_is_blocked(caplog, waits_first):
    app = Perdure("memory://")
    told = threading.Event()

    class Told(logging.Handler):
        def emit(self, record):
            if "has been blocked for" in record.getMessage() and "(blocks)" in record.getMessage():
                told.set()

    def innermost() -> bool:
        return told.wait(20)  # this line

    @app.task
    async def blocks() -> bool:
        if waits_first:
            await asyncio.sleep(0.01)
        return innermost()

    handler = Told()
    logging.getLogger("perdure").addHandler(handler)
    try:
        async with app, app.worker(concurrency=2):
            job = await blocks.enqueue()
            assert await job.result(timeout=30) is True  # the warning came while it was blocked
    finally:
        logging.getLogger("perdure").removeHandler(handler)
    lines = [text for text in caplog.messages if f"by job {job.id} (blocks)" in text]
    assert re.search(r"test_blocked\.py:\d+ in innermost: return told\.wait\(20\)  # this line", lines[0])


async def test_a_loop_that_only_waits_is_not_blocked(caplog):
    app = Perdure("memory://")

    @app.task
    async def waits() -> None:
        await asyncio.sleep(2.5)

    async with app, app.worker():
        await (await waits.enqueue()).result(timeout=20)
    assert not any("(waits), at" in text for text in caplog.messages)
