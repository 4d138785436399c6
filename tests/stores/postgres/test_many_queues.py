"""The pages that a claim reads do not grow with the number of queues, whatever the queues hold.

Pages are counted, not milliseconds: the count does not depend on the load of the machine. Autovacuum is switched off for
the tables, because its reads would count too. The test vacuums them itself, without and with ANALYZE, so that plans with
and without statistics are judged.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from benchmarks.queues.shapes import SERVED, SHAPES
from perdure.core.ids import new_stamp
from perdure.storage.contract import Claim, Want

from .helpers import opened, schema_of

FEW, MANY, JOBS = 150, 3_000, 3_000  # few: more than a claim reads together
CLAIMS = 8
NAMED = ("queue-0", "queue-1", "queue-2")
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
PAGES = """
SELECT sum(coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0) + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0))
FROM pg_statio_user_tables WHERE schemaname = %s
"""
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
WANTS = {
    "every queue": {},
    "every queue, known tasks": {"tasks": ("other", "task")},
    "three named": {"queues": None},
    "three named, known tasks": {"queues": None, "tasks": ("other", "task")},
}


@pytest.mark.parametrize("shape", list(SHAPES))
async def test_the_pages_of_a_claim_do_not_grow_with_the_number_of_queues(own_server, admin, shape):
    _, fill, limited = SHAPES[shape]
    urls = [own_server.fresh(), own_server.fresh()]
    for url, queues in zip(urls, (FEW, MANY), strict=True):
        async with opened(url) as store:
            _stop_autovacuum(admin, schema_of(url))
            await fill(store, queues, JOBS)
    named = NAMED if shape in ("ready", "limited", "rated") else SERVED
    wants = {
        name: Want(2, limited=limited, **{**asked, **({"queues": named} if "queues" in asked else {})})
        for name, asked in WANTS.items()
    }
    grown = {}
    for analyzed in (False, True):
        pages = [await _pages_of_claims(admin, url, wants, analyzed) for url in urls]
        for name in wants:
            few, many = (found[name] for found in pages)
            if many > 1.5 * few + 60:
                grown[name, analyzed] = f"{few:.0f} pages with {FEW} queues, {many:.0f} with {MANY}"
    assert not grown


async def _pages_of_claims(admin, url, wants, analyzed) -> dict[str, float]:
    """The pages that one claim of each kind reads."""
    schema = schema_of(url)
    async with opened(url) as store:
        for want in wants.values():  # which may leave something for the next claim to put in order
            await store.claim(Claim("w", new_stamp(), (want,)))
    await _backends_end(admin)
    with psycopg.connect(admin.info.dsn, autocommit=True) as other:  # its reads are counted when it ends
        for (table,) in admin.execute(TABLES, [f'"{schema}"']).fetchall():
            other.execute(f'VACUUM {"(ANALYZE)" if analyzed else ""} "{schema}"."{table}"')
    await _backends_end(admin)
    pages = {}
    for name, want in wants.items():
        (before,) = admin.execute(PAGES, [schema]).fetchone()
        async with opened(url) as store:
            for _ in range(CLAIMS):
                assert len(await store.claim(Claim("w", new_stamp(), (want,)))) == 2, "there were jobs to claim"
        await _backends_end(admin)
        (after,) = admin.execute(PAGES, [schema]).fetchone()
        pages[name] = float(after - before) / CLAIMS
    return pages


async def _backends_end(admin) -> None:
    """A backend adds what it counted to the statistics at the latest when it ends."""
    async with asyncio.timeout(30):
        while admin.execute(BACKENDS).fetchone()[0]:
            await asyncio.sleep(0.01)


def _stop_autovacuum(admin, schema: str) -> None:
    for (table,) in admin.execute(TABLES, [f'"{schema}"']).fetchall():
        admin.execute(f'ALTER TABLE "{schema}"."{table}" SET (autovacuum_enabled = false)')
