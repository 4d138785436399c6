"""Which jobs and changes are ordinary, and how fast paths are switched off."""

import subprocess
import sys
from typing import get_type_hints

import msgspec
import pytest

from perdure.core.change import Change, HoldGuard, KeyMove, OrdinarySuccess, VersionGuard
from perdure.core.job import State
from perdure.core.record import NewJob
from perdure.storage.memory.store import MemoryStorage
from perdure.storage.rules import fast_path
from perdure.testing import ManualClock, conformance
from perdure.testing.conformance.reading import fields


@pytest.mark.parametrize(("value", "expected"), [(None, True), ("1", True), ("0", False)])
def test_one_variable_of_the_environment_switches_all_fast_paths_off(value, expected):
    environment = {} if value is None else {"PERDURE_FAST_PATHS": value}
    code = "from perdure.storage.rules import fast_path; print(fast_path.enabled())"
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{expected}\n"


def test_a_test_can_switch_fast_paths_off(monkeypatch):
    monkeypatch.setattr(fast_path, "enabled", lambda: False)
    assert not fast_path.enabled()


JOB = NewJob(id="a", task="t", payload="{}", backoff="b", retention="r", dead_retention="d")
OTHER = {int: 7, str: "other", int | None: 7, str | None: "other"}


@pytest.mark.parametrize("field", NewJob.__struct_fields__)
def test_a_field_that_not_every_job_has_makes_a_job_special(field):
    job = msgspec.structs.replace(JOB, **{field: OTHER[get_type_hints(NewJob)[field]]})
    assert fast_path.is_ordinary(JOB)
    assert fast_path.is_ordinary(job) is (field in fast_path.OF_EVERY_JOB)
    assert fast_path.is_ordinary_but_for_limits(job) is (field in {*fast_path.OF_EVERY_JOB, "limits"})


SUCCESS = OrdinarySuccess("a", HoldGuard(1, 2), failures=3, result="4", keep=5, started_at=6)


@pytest.mark.parametrize("field", Change.__struct_fields__)
def test_a_field_that_not_every_success_has_makes_a_change_special(field):
    plain = Change(**{name: getattr(SUCCESS, name) for name in Change.__struct_fields__})
    change = msgspec.structs.replace(plain, **{field: HoldGuard(8, 9) if field == "guard" else object()})
    assert fast_path.is_ordinary_success(plain)
    assert fast_path.are_ordinary_successes([plain, SUCCESS])
    assert fast_path.is_ordinary_success(change) is (field in fast_path.OF_EVERY_SUCCESS)
    assert fast_path.are_ordinary_successes([SUCCESS, change]) is (field in fast_path.OF_EVERY_SUCCESS)


@pytest.mark.parametrize("guard", [VersionGuard(1), HoldGuard(1, 2, ended=True)])
def test_only_the_holder_reports_an_ordinary_success(guard):
    change = Change("a", guard, State.SUCCEEDED, key=KeyMove.FREE)
    assert not fast_path.is_ordinary_success(change)
    assert not fast_path.are_ordinary_successes([SUCCESS, change])


@pytest.mark.parametrize("field", fields.DEFAULTS)
async def test_conformance_finds_a_field_that_a_store_forgets(field):
    class Forgetful(MemoryStorage):
        async def restore(self, jobs):
            await super().restore(jobs)
            for row in self._rows.by_id.values():
                setattr(row, field, fields.DEFAULTS[field])

    async def make():
        clock = ManualClock()
        return Forgetful(clock), clock

    failed = []
    for case in conformance.cases():
        if case.verb == "fields":
            try:
                await conformance.run(case, make)
            except AssertionError as error:
                failed.append(str(error))
    assert any(f"field {field} " in message for message in failed)
