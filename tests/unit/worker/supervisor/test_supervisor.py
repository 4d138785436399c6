"""A supervisor and its runners: who is charged, who is not, how they end, how they are replaced."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time

import pytest

from perdure import State
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.plant import FAR_AWAY, Plant, alive
from tests.support.waiting import wait_until


@pytest.fixture
def plant(tmp_path):
    plant = Plant(tmp_path, address("sqlite", tmp_path))
    yield plant
    plant.stop()


async def begun(plant: Plant, id: str, attempts: int = 1):
    return (await asyncio.to_thread(wait_until, lambda: plant.lines(id)[attempts - 1 :]))[0]


async def test_what_ran_beside_a_job_that_does_not_stop_goes_back_free(plant):
    gate = plant.folder / "gate"
    plant.start("--concurrency", "2")
    async with plant.app:
        beside = await plant.enqueue("waits", str(gate))
        first = await begun(plant, beside)
        stuck = await plant.enqueue("overruns", "sleep")
        await begun(plant, stuck)
        unbegun = await plant.enqueue("add", 1, 2)
        await begun(plant, beside, 2)
        assert not alive(first.pid)  # handed back after the kill: no job runs twice at once
        gate.touch()
        jobs = [await plant.ended(id) for id in (beside, stuck, unbegun)]
    assert [(job.state, job.failures, job.losses) for job in jobs] == [
        (State.SUCCEEDED, 0, 0),
        (State.SUCCEEDED, 1, 0),
        (State.SUCCEEDED, 0, 0),
    ]
    (error,) = jobs[1].errors
    assert "did not stop" in error.message
    assert "in overruns" in error.traceback  # the dump shows where it was
    assert jobs[0].errors == ()


async def test_a_spare_that_dies_early_does_not_end_a_team_at_work(plant):
    def started() -> list[int]:
        return [int(pid) for pid in re.findall(r"started: pid (\d+)", plant.said())]

    worker = plant.start("--concurrency", "2")
    spare = (await asyncio.to_thread(wait_until, lambda: started()[1:]))[0]
    worker.send_signal(signal.SIGSTOP)
    os.kill(spare, signal.SIGKILL)
    await asyncio.sleep(1.2)  # longer than it may look away without forgiving all that it saw
    worker.send_signal(signal.SIGCONT)
    await asyncio.to_thread(wait_until, lambda: len(started()) > 2, 15)
    async with plant.app:
        assert (await plant.ended(await plant.enqueue("add", 1, 2))).result == 3
    assert worker.poll() is None


async def test_several_are_suspects_and_none_is_charged(plant):
    plant.start("--concurrency", "5", "--processes", "2", "--spares", "0")
    gate = plant.folder / "gate"
    async with plant.app:
        ids = [await plant.enqueue("waits", str(gate)) for _ in range(6)]
        lines = [await begun(plant, id) for id in ids]
        victims = [line for line in lines if line.pid == lines[0].pid]
        os.kill(lines[0].pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: plant.said().count("is ready again") == len(victims))
        gate.touch()
        jobs = [await plant.ended(id) for id in ids]
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert {job.losses for job in jobs} == {0}
    assert sum(job.attempt == 2 for job in jobs) == len(victims)


async def test_the_children_of_a_killed_runner_are_killed_and_their_jobs_go_back_free(tmp_path):
    plant = Plant(tmp_path, address("sqlite", tmp_path), FAR_AWAY)
    gate = plant.folder / "gate"
    plant.start()
    async with plant.app:
        id = await plant.enqueue("far_away", str(gate))
        began = await begun(plant, id)
        (runner,) = [pid for pid in plant.runners() if str(pid) == _parent(began.pid)]
        os.kill(runner, signal.SIGKILL)
        again = await begun(plant, id, 2)
        assert not alive(began.pid)
        gate.touch()
        job = await plant.ended(id)
    plant.stop()
    assert again.pid != began.pid
    assert (job.state, job.attempt, job.failures, job.losses) == (State.SUCCEEDED, 2, 0, 0)


async def test_poison_is_dead_with_the_evidence(plant):
    plant.start()
    async with plant.app:
        poison = await plant.ended(await plant.enqueue("dies", "segfault", 9))
    assert (poison.state, poison.attempt, poison.losses) == (State.DEAD, 3, 3)
    assert poison.reason == "poison: 3 workers died while running it"
    for number, error in enumerate(poison.errors, 1):
        assert "was killed by SIGSEGV" in error.message
        assert f"last words of attempt {number}" in error.traceback
        assert "in dies" in error.traceback


async def test_a_handler_that_holds_the_interpreter_keeps_its_lease(plant):
    plant.start("--processes", "2", "--spares", "0")
    async with plant.app:
        job = await plant.ended(await plant.enqueue("blocks_for", 4.0))
    assert (job.state, job.attempt, job.losses, job.errors) == (State.SUCCEEDED, 1, 0, ())


async def test_when_the_supervisor_dies_runners_finish_and_end(plant):
    gate = plant.folder / "gate"
    supervisor = plant.start()
    async with plant.app:
        id = await plant.enqueue("waits", str(gate))
        began = await begun(plant, id)
        runners = plant.runners()
        supervisor.kill()
        await asyncio.to_thread(wait_until, lambda: "is gone: it claims nothing more" in plant.said())
        later = await plant.enqueue("add", 1, 2)
        await asyncio.sleep(2.5)  # beyond the lease: the runner renews by itself
        gate.touch()
        job = await plant.ended(id)
        assert (job.state, job.attempt) == (State.SUCCEEDED, 1)
        await asyncio.to_thread(wait_until, lambda: not any(alive(pid) for pid in runners))
        assert (await plant.app.jobs.get(later)).state is State.READY
    assert began.pid in runners


async def test_sighup_starts_new_code_and_lets_the_old_finish(plant):
    gate = plant.folder / "gate"
    supervisor = plant.start()
    async with plant.app:
        old = await plant.enqueue("waits", str(gate))
        began = await begun(plant, old)
        (plant.folder / "plant.py").write_text("this is no Python")
        supervisor.send_signal(signal.SIGHUP)
        await asyncio.to_thread(wait_until, lambda: "the old ones go on" in plant.said())
        assert (await plant.ended(await plant.enqueue("version"))).result == 1
        plant.write(2)
        supervisor.send_signal(signal.SIGHUP)

        async def new_code() -> bool:
            return (await plant.ended(await plant.enqueue("version"))).result == 2

        async with asyncio.timeout(30):
            while not await new_code():
                pass
        assert alive(began.pid)
        gate.touch()
        job = await plant.ended(old)
        assert (job.state, job.attempt) == (State.SUCCEEDED, 1)
        await asyncio.to_thread(wait_until, lambda: not alive(began.pid))
    assert plant.stop() == [0]


@pytest.mark.parametrize("limit", [("--max-jobs", "3"), ("--max-memory", "1M")])
async def test_runners_are_replaced_and_nothing_is_lost(plant, limit):
    plant.start(*limit)
    async with plant.app:
        pids = set()
        async with asyncio.timeout(30):
            while len(pids) < 3:
                id = await plant.enqueue("version")
                job = await plant.ended(id)
                assert (job.state, job.failures, job.losses) == (State.SUCCEEDED, 0, 0)
                (line,) = plant.lines(id)
                pids.add(line.pid)
    assert "is replaced: it " in plant.said()
    assert plant.stop() == [0]


async def test_runners_that_do_not_start_are_started_again_less_and_less_often(plant):
    plant.start()
    async with plant.app:
        await asyncio.to_thread(wait_until, plant.spare_ready)
        (plant.folder / "plant.py").write_text("raise SystemExit(7)")
        for runner in plant.runners():
            os.kill(runner, signal.SIGKILL)
        pauses = r"ended with exit code 7; the next start is in (\d+) s"
        await asyncio.to_thread(wait_until, lambda: len(re.findall(pauses, plant.said())) == 2)
        assert re.findall(pauses, plant.said()) == ["2", "4"]
        plant.write(1)
        assert (await plant.ended(await plant.enqueue("add", 1, 2))).state is State.SUCCEEDED


async def test_a_worker_that_cannot_start_says_so_and_ends(plant):
    (plant.folder / "plant.py").write_text("import nowhere")
    assert await asyncio.to_thread(plant.start().wait, 30) == 1
    assert "nowhere" in plant.said()


async def test_a_worker_that_cannot_begin_says_so_and_ends(plant):
    """The app can be imported, but nothing is provided for what a handler asks for."""
    (plant.folder / "plant.py").write_text(
        "from perdure import Perdure, PROVIDED\n"
        f"app = Perdure({plant.url!r})\n"
        "class Pool: ...\n"
        "@app.task\n"
        "async def needs(pool: Pool = PROVIDED) -> None: ...\n"
    )
    assert await asyncio.to_thread(plant.start().wait, 30) == 2
    assert "nothing of kind Pool is provided" in plant.said()


async def test_a_store_in_memory_is_run_in_one_process(plant):
    plant.url = "memory://"
    plant.write(1)
    worker = plant.start("--processes", "3")
    await asyncio.to_thread(wait_until, lambda: "slots on memory" in plant.said())
    assert "lives in one process: everything runs in this one process, without a supervisor" in plant.said()
    assert plant.runners() == []
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 20) == 0


@pytest.mark.parametrize("store", ["sqlite", *OF_EACH_KIND])
async def test_zombies_are_harmless(store, tmp_path):
    """A runner and its supervisor are stopped for longer than the lease: another worker has the job, and their words are
    refused when they go on."""
    plant = Plant(tmp_path, address(store, tmp_path))
    gate = tmp_path / "gate"
    first = plant.start("--name", "first", "--spares", "0")
    try:
        async with plant.app:
            id = await plant.enqueue("waits", str(gate))
            began = await begun(plant, id)
            plant.start("--name", "second", "--spares", "0")
            os.kill(first.pid, signal.SIGSTOP)
            os.kill(began.pid, signal.SIGSTOP)
            again = await begun(plant, id, 2)
            assert again.worker.startswith("second.")
            os.kill(began.pid, signal.SIGCONT)
            os.kill(first.pid, signal.SIGCONT)
            await asyncio.to_thread(wait_until, lambda: f"job {id} (waits) attempt 1 lost its hold" in plant.said())
            gate.touch()
            job = await plant.ended(id)
            assert (job.state, job.attempt) == (State.SUCCEEDED, 2)
        assert plant.stop() == [0, 0]
    finally:
        plant.stop()


def _parent(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split(")")[-1].split()[1]


async def test_a_thread_that_does_not_stop_at_a_stop_costs_its_job_nothing(plant):
    supervisor = plant.start("--grace", "0", "--spares", "0")
    async with plant.app:
        id = await plant.enqueue("dies", "wait")
        await begun(plant, id)
        supervisor.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(supervisor.wait, 40) == 0
        job = await plant.app.jobs.get(id)
    assert (job.state, job.failures, job.losses, job.errors) == (State.READY, 0, 0, ())


def test_a_stop_does_not_wait_for_a_runner_that_cannot_hear(plant, machine):
    """It is killed a while after its grace; its job goes back free."""

    async def begin() -> str:
        async with plant.app:
            id = await plant.enqueue("blocks_for", 90.0)
            await begun(plant, id)
            return id

    supervisor = plant.start("--grace", "0", "--spares", "0")
    id = asyncio.run(begin())
    supervisor.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    assert supervisor.wait(60) == 0
    assert time.monotonic() - asked < machine.seconds(15)

    async def look():
        async with plant.app:
            return await plant.app.jobs.get(id)

    job = asyncio.run(look())
    assert (job.state, job.failures, job.losses) == (State.READY, 0, 0)
