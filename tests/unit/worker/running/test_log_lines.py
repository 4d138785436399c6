"""What a worker logs about attempts: words for people, fields for programs, tracebacks of failures."""

from __future__ import annotations

import json
import logging

import pytest

from perdure import Backoff, Context, Perdure
from tests.support.addresses import address
from tests.support.plant import Plant

FIELDS = ("job", "task", "attempt", "worker")


class Refused(Exception): ...


@pytest.fixture
def app():
    return Perdure("memory://", backoff=Backoff.fixed(0.01), max_attempts=2)


def logged(caplog, words: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if words in record.getMessage()]


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_failure_carries_its_traceback_and_fields(app, caplog, kind):
    def charge() -> None:
        raise Refused("no card")

    if kind == "async":

        @app.task(name="charge")
        async def refuse() -> None:
            charge()
    else:

        @app.task(name="charge")
        def refuse() -> None:
            charge()

    async with app:
        worker = app.worker(name="anna")
        async with worker:
            job = await app.enqueue(refuse.call())
            async for _ in job.watch(timeout=20):
                pass
    retried, dead = logged(caplog, "attempt 1 failed"), logged(caplog, "is dead")
    for (record,), level, attempt in ((retried, logging.WARNING, 1), (dead, logging.ERROR, 2)):
        assert record.levelno == level
        assert [getattr(record, name) for name in FIELDS] == [str(job.id), "charge", attempt, "anna"]
        kind_of_error, error, trace = record.exc_info
        assert (kind_of_error, str(error)) == (Refused, "no card")
        names = []
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert names == ["refuse", "charge"], "frames of the worker tell a user nothing"


async def test_successes_are_told_at_debug_level_only(app, caplog):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def twice(ctx: Context) -> None: ...

    with caplog.at_level(logging.DEBUG, "perdure"):
        async with app, app.worker(name="anna"):
            job = await add.enqueue(1, 2)
            await job.result(timeout=20)
    (record,) = logged(caplog, "succeeded in")
    assert record.levelno == logging.DEBUG
    assert [getattr(record, name) for name in FIELDS] == [str(job.id), "add", 1, "anna"]
    caplog.clear()
    with caplog.at_level(logging.INFO, "perdure"):
        async with app, app.worker(name="anna"):
            await (await add.enqueue(1, 2)).result(timeout=20)
    assert logged(caplog, "succeeded in") == []


@pytest.mark.parametrize("way", ["--no-supervisor", "--spares=0"])
async def test_json_lines(tmp_path, way):
    """Supervisor and runner write one JSON object a line, tracebacks in it."""
    more = '\n@app.task(max_attempts=1)\ndef breaks():\n    raise ValueError("one\\ntwo \\x1b[31m")\n'
    plant = Plant(tmp_path, address("sqlite", tmp_path), more)
    plant.start("--log-format", "json", "--log-level", "debug", way)
    try:
        async with plant.app:
            added = await plant.enqueue("add", 1, 2)
            broken = await plant.enqueue("breaks")
            await plant.ended(added)
            await plant.ended(broken)
        plant.stop()
    finally:
        plant.stop()
    lines = [json.loads(line) for line in plant.said().splitlines()]
    assert {line["logger"] for line in lines} == {"perdure"}
    (succeeded,) = [line for line in lines if "succeeded in" in line["message"]]
    assert (succeeded["level"], succeeded["job"], succeeded["task"], succeeded["attempt"]) == ("debug", added, "add", 1)
    (dead,) = [line for line in lines if "is dead" in line["message"]]
    assert (dead["level"], dead["job"], dead["task"]) == ("error", broken, "breaks")
    assert "ValueError: one\ntwo \x1b[31m" in dead["exception"]
    assert dead["time"].endswith("Z")
    assert any("keeps 1 runner running" in line["message"] for line in lines) == (way != "--no-supervisor")


async def test_no_line_of_text_can_be_forged_by_an_error(tmp_path):
    forged = "2026-01-01T00:00:00.000Z ERROR the store is on fire"
    more = f'\n@app.task(max_attempts=1)\ndef breaks():\n    raise ValueError("one\\n{forged} \\x1b[31m")\n'
    plant = Plant(tmp_path, address("sqlite", tmp_path), more)
    plant.start("--spares", "0")
    try:
        async with plant.app:
            await plant.ended(await plant.enqueue("breaks"))
    finally:
        plant.stop()
    assert "ValueError: one" in plant.said()
    assert "\x1b" not in plant.said()
    assert not [line for line in plant.said().splitlines() if line.startswith(forged)]
    assert f"    {forged} \\x1b[31m" in plant.said().splitlines()
