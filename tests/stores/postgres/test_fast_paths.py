"""The general path gives the same results as the fast paths: conformance and the twin test with fast paths switched off."""

from __future__ import annotations

import pytest

from perdure.core.ids import new_ids
from perdure.core.record import UniformJobs
from perdure.storage.rules import fast_path
from perdure.testing import conformance
from tests.stores.conformance.stores import STORES
from tests.stores.conformance.test_twin import ON_A_SERVER, _told_the_same

from .helpers import job, opened

VERBS = frozenset(
    [
        "claim",
        "apply",
        "limits",
        "enqueue",
        "renew",
        "recover_claim",
        "promote",
        "unique",
        "edges",
        "check_holds",
        "queues",
    ]
)


@pytest.fixture(autouse=True)
def _switched_off(monkeypatch):
    monkeypatch.setattr(fast_path, "enabled", lambda: False)


@pytest.mark.parametrize("case", [case for case in conformance.cases() if case.verb in VERBS], ids=str)
async def test_case_by_the_general_path(case, tmp_path):
    try:
        await conformance.run(case, lambda: STORES["postgres"](tmp_path))
    except conformance.NotOffered as declined:
        pytest.skip(str(declined))


@pytest.mark.hypothesis
def test_the_general_path_answers_as_the_specification_does(tmp_path):
    _told_the_same("postgres", tmp_path, ON_A_SERVER, 40)


async def test_no_fast_path_is_used_when_they_are_switched_off(own_url, monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError("a fast path was used")

    monkeypatch.setattr("perdure.storage.postgres.writing.enqueue.try_fast_copy", fail)
    async with opened(own_url) as store:
        monkeypatch.setattr(type(store._exchanges._fast_limits), "_parse_limits", fail)
        payloads = ["{}"] * 2_000
        await store.enqueue(UniformJobs(job(id="", payload=""), new_ids(len(payloads)), payloads))
        await store.enqueue([job(limits='[["k",1]]')])
        assert len(await conformance.tools.claim(store, 500)) == 500
        assert len(await conformance.tools.claim(store, 5, limited=True)) == 1
