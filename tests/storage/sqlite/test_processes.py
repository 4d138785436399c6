"""Several processes on one file: nothing is lost, nobody starves."""

import asyncio
import sqlite3
import time

import pytest

from perdure.job import State
from perdure.storage import migrate
from perdure.storage.contract import Filter
from perdure.storage.urls import ledger

from .helpers import claim, finish, job, line, process, store_at


async def test_a_busy_claimer_does_not_starve_renewals(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        await store.enqueue([job()])
        (held,) = (await store.exchange((), claim())).claimed
        busy = process(
            path,
            """
            async def main():
                async with store_at(path) as store:
                    say("busy")
                    changes = []
                    ends = time.monotonic() + 3
                    while time.monotonic() < ends:
                        await store.enqueue([job() for _ in range(200)])
                        claimed = (await store.exchange(changes, claim(200))).claimed
                        changes = [decide(record, Succeeded()) for record in claimed]
            asyncio.run(main())
            """,
        )
        assert await line(busy) == "busy"
        waits = []
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            began = time.monotonic()
            (verdict,) = await store.renew([held.hold])
            assert verdict.accepted
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.01)
        finish(busy)
        assert len(waits) > 10
        assert max(waits) < 1.0


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


def test_two_migrators_at_once(tmp_path):
    path = tmp_path / "jobs.db"
    code = """
    from perdure.storage import migrate
    from perdure.storage.urls import ledger
    from perdure.storage.sqlite import schema
    book, known, close = ledger(f"sqlite:///{path}")
    say("ready")
    sys.stdin.readline()
    say(*[step.number for step in migrate.up(book, known)])
    close()
    """
    others = [process(path, code) for _ in range(4)]
    for other in others:
        assert other.stdout.readline() == "ready\n"
    for other in others:
        other.stdin.write("\n")
        other.stdin.flush()
    ran = [finish(other).split() for other in others]
    assert sorted(number for numbers in ran for number in numbers) == ["1", "2", "3", "4", "5"]


def test_a_dry_run_changes_nothing(tmp_path):
    path = tmp_path / "jobs.db"
    book, known, close = ledger(f"sqlite:///{path}")
    assert [step.number for step in migrate.up(book, known, dry_run=True)] == [1, 2, 3, 4, 5]
    assert migrate.status(book, known) == migrate.Status(0, 5, tuple(known))
    assert [step.number for step in migrate.up(book, known)] == [1, 2, 3, 4, 5]
    assert migrate.up(book, known) == []
    assert migrate.status(book, known) == migrate.Status(5, 5, ())
    migrate.check(book, known)
    close()


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
        await asyncio.wait_for(waiting, 5)
