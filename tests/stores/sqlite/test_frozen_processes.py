"""A process that is frozen while it waits for its turn to write, or has it, does not stop the writes of others."""

import asyncio
import os
import signal
import time

import pytest

from perdure.storage.contract import Filter

from .helpers import job, line, process, store_at

WAITS_FOR_ITS_TURN = """
    import fcntl, pathlib
    async def main():
        async with store_at(path) as store:
            await store.enqueue([job()])
            held = open(pathlib.Path(sys.argv[2]) / "turn")
            fcntl.flock(held, fcntl.LOCK_EX)  # as another process that writes
            writing = asyncio.ensure_future(store.enqueue([job()]))
            await asyncio.sleep(0)
            say("waits")
            await asyncio.to_thread(sys.stdin.readline)
            held.close()
            await writing
            say("wrote")
    asyncio.run(main())
"""
HAS_ITS_TURN = """
    async def main():
        async with store_at(path) as store:
            await store.enqueue([job()])
            with store._shared.database.write_lock:  # and has not begun to write
                say("waits")
                sys.stdin.readline()
            await store.enqueue([job()])
            say("wrote")
    asyncio.run(main())
"""


@pytest.mark.parametrize("code", [WAITS_FOR_ITS_TURN, HAS_ITS_TURN], ids=["waits for its turn", "has its turn"])
async def test_others_write_while_a_process_is_frozen(tmp_path, code, machine):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job()])
        folder = store._shared.file.beside()
        other = process(path, code, folder)
        try:
            assert await line(other) == "waits"
            if code is WAITS_FOR_ITS_TURN:
                await _until_taken(folder / "next")
            os.kill(other.pid, signal.SIGSTOP)
            began = time.monotonic()
            await store.enqueue([job()])
            first = time.monotonic() - began
            for _ in range(5):
                await store.enqueue([job()])
            others = time.monotonic() - began - first
            assert first < machine.seconds(15), "at most the limit for a turn, and then SQLite's own lock"
            assert others < machine.seconds(2.5), "who knows that the line is stuck does not wait again"
            os.kill(other.pid, signal.SIGCONT)
            other.stdin.write("\n")
            other.stdin.flush()
            assert await line(other) == "wrote"
            await store.enqueue([job()])
            assert await store.count(Filter()) == 10
        finally:
            other.kill()
            other.communicate()


async def _until_taken(path) -> None:
    import fcntl

    async with asyncio.timeout(20):
        with path.open() as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
                fcntl.flock(file, fcntl.LOCK_UN)
                await asyncio.sleep(0.005)
