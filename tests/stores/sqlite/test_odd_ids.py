"""Rows whose id is no id of ours: pages of a listing lead over them."""

from __future__ import annotations

import sqlite3

import pytest

from perdure.storage.contract import Filter

from .helpers import job, store_at


@pytest.mark.parametrize("odd", ['{"a": 1}', "-", "!"])
async def test_pages_lead_over_a_row_with_an_odd_id(tmp_path, odd):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        jobs = [job() for _ in range(3)]
        await store.enqueue(jobs)
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("UPDATE perdure_jobs SET id = ? WHERE id = ?", (odd, jobs[1].id))
        raw.close()
        (whole, end) = await store.find(Filter(), 9, None)
        assert end is None
        seen, cursor = [], None
        for _ in range(4):
            page, cursor = await store.find(Filter(), 1, cursor)
            seen += page
            if cursor is None:
                break
        assert cursor is None
        assert [record.id for record in seen] == [record.id for record in whole]
        assert {jobs[0].id, jobs[2].id} < {record.id for record in whole}
