"""How a new job stands, in one place for all stores that decide it in Python; and the tenant that is counted."""

import pytest

from perdure.core.job import State, tenant_root
from perdure.core.record import POLICY_DEFAULTS, NewJob, defaults_of
from perdure.storage.rules.records import due_time, initial_state, is_parked
from perdure.tasks.options import JobTemplate

NOW = 1_000


@pytest.mark.parametrize(
    ("options", "due", "state"),
    [
        ({}, NOW, State.READY),
        ({"delay": 5}, NOW + 5, State.SCHEDULED),
        ({"at": NOW}, NOW, State.READY),
        ({"at": NOW + 1}, NOW + 1, State.SCHEDULED),
        ({"at": NOW - 1, "delay": 9}, NOW - 1, State.READY),
        ({"waits": 1}, NOW, State.BLOCKED),
        ({"waits": 1, "delay": 5}, NOW + 5, State.BLOCKED),
    ],
)
def test_the_state_of_a_new_job(options, due, state):
    job = NewJob(id="a", task="t", payload="{}", **POLICY_DEFAULTS, **options)
    assert (due_time(job, NOW), initial_state(job, NOW)) == (due, state)


def test_only_a_ready_job_with_limits_is_parked():
    assert [state for state in State if is_parked(state, "[]")] == [State.READY]
    assert not is_parked(State.READY, None)


def test_a_job_without_options_has_the_defaults_of_a_new_job():
    template = JobTemplate("t", {}).template
    defaults = defaults_of(NewJob) | POLICY_DEFAULTS
    assert {name: getattr(template, name) for name in defaults} == defaults


@pytest.mark.parametrize(("tenant", "root"), [(None, ""), ("", ""), ("acme", "acme"), ("acme/eu/1", "acme")])
def test_a_tenant_counts_up_to_its_slash(tenant, root):
    assert tenant_root(tenant) == root
