"""What the processes of `test_processes` do: `python -m tests.stores.mongo.roles ROLE URL FILE`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from perdure import Context, Perdure


def app_at(url: str, file: str) -> tuple[Perdure, Any]:
    """An app and its task, whose handler writes down each attempt, in one write that is whole or not there."""
    app = Perdure(url)
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @app.task(lease=3.0, max_attempts=None)
    async def note(ctx: Context, n: int) -> int:
        os.write(log, f"{n} {ctx.job.attempt} {os.getpid()}\n".encode())
        await asyncio.sleep(0.002)
        return n

    return app, note


async def work(url: str, file: str) -> None:
    app, _ = app_at(url, file)
    async with app:
        await app.worker(poll=0.2, concurrency=4).run()


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](sys.argv[2], sys.argv[3]))
