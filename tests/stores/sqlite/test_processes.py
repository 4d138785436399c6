"""Several processes on one file: nothing is lost, nobody starves."""

import asyncio
import sqlite3

import pytest

from perdure.core.job import State
from perdure.storage.contract import Filter

from .helpers import claim, finish, job, line, process, store_at

ALWAYS_WRITES = """
    from pathlib import Path
    from perdure.storage.sqlite.connection.fair_write_lock import FairWriteLock

    turns, counter = FairWriteLock(Path(path + "-perdure")), open(sys.argv[2], "r+b", buffering=0)
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    written, ends = 0, time.monotonic() + 60
    while time.monotonic() < ends:
        with turns:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(0.02)  # the length of a large claim
            connection.execute("COMMIT")
        written += 1
        os.pwrite(counter.fileno(), written.to_bytes(8, "big"), 0)
"""


async def test_a_program_that_always_writes_does_not_starve_renewals(tmp_path):
    """The other program keeps the write lock nearly all the time. A renewal has to wait for the write that is under way and
    perhaps for one more, not for a moment at which the lock happens to be free."""
    path, counter = tmp_path / "jobs.db", tmp_path / "counter"
    counter.write_bytes(bytes(8))

    def written():
        return int.from_bytes(counter.read_bytes(), "big")

    async with store_at(path) as store:
        await store.enqueue([job()])
        (held,) = (await store.exchange((), claim())).claimed
        other = process(path, ALWAYS_WRITES, counter)
        try:
            async with asyncio.timeout(30):
                while written() < 3:
                    await asyncio.sleep(0.01)
            waited_for = []
            for _ in range(15):
                before = written()
                (verdict,) = await store.renew([held.hold])
                waited_for.append(written() - before)
                assert verdict.accepted
                await asyncio.sleep(0.03)  # the other program has the lock again
        finally:
            other.kill()
            other.communicate()
    assert sum(waited_for) <= 3 * len(waited_for), f"each renewal had to wait for so many writes: {waited_for}"


async def test_kill_9_between_any_two_calls_loses_nothing(tmp_path):
    """A worker enqueues, claims and finishes, saying what was acknowledged, and is killed at any moment."""
    path = tmp_path / "jobs.db"
    enqueued, finished = set(), set()
    async with store_at(path) as store:
        for round_ in range(6):
            other = process(
                path,
                """
                async def main():
                    async with store_at(path) as store:
                        changes = []
                        while True:
                            jobs = [job(lease=1) for _ in range(3)]
                            await store.enqueue(jobs)
                            say("enqueued", *[one.id for one in jobs])
                            if changes:
                                verdicts = await store.apply(changes)
                                taken = [c.id for c, v in zip(changes, verdicts) if v.accepted]
                                say("finished", *taken)
                            claimed = (await store.exchange((), claim(2))).claimed
                            changes = [decide(record, Succeeded("1")) for record in claimed]
                asyncio.run(main())
                """,
            )
            said = [await line(other) for _ in range(5 + 7 * round_)]
            other.kill()
            rest, _ = await asyncio.to_thread(other.communicate)
            for words in [*said, *rest.split("\n")[:-1]]:  # the last line may be cut
                kind, *ids = words.split()
                (enqueued if kind == "enqueued" else finished).update(ids)
        found = {record.id: record for record in await store.get(sorted(enqueued | finished)) if record}
        assert enqueued <= found.keys()
        assert all(found[id].state is State.SUCCEEDED for id in finished)
        states = {State.READY, State.RUNNING, State.SUCCEEDED}
        assert {record.state for record in found.values()} <= states
        assert await store.count(Filter()) >= len(enqueued)
    raw = sqlite3.connect(path)
    assert raw.execute("pragma integrity_check").fetchone() == ("ok",)
    raw.close()


async def test_many_processes_share_a_file(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path):
        pass
    code = """
    async def main():
        async with store_at(path) as store:
            mine = []
            for _ in range(5):
                await store.enqueue([job() for _ in range(4)])
                claimed = (await store.exchange((), claim(4, worker=str(os.getpid())))).claimed
                mine += [record.id for record in claimed]
                await store.apply([decide(record, Succeeded()) for record in claimed])
            say(*mine)
    asyncio.run(main())
    """
    others = [process(path, code) for _ in range(6)]
    claimed = [id for other in others for id in finish(other, 90).split()]
    assert len(claimed) == len(set(claimed)) == 6 * 20
    async with store_at(path) as store:
        assert await store.count(Filter(states=(State.SUCCEEDED,))) == 120


@pytest.mark.timeout(60)
async def test_a_transaction_of_another_program_is_waited_for(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("begin immediate")
        waiting = asyncio.ensure_future(store.enqueue([job()]))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        raw.execute("rollback")
        raw.close()
        await asyncio.wait_for(waiting, 20)
