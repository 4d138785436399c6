"""Workers and servers are killed and frozen while jobs, flows, transactions, unique keys and limits are at work: nothing is
lost, nothing gets stuck, nothing counts twice, no job pays for it, and no worker has to be restarted by hand.

This is the short form, on every store. The long form is a command: `./dev kills STORE`.
"""

from __future__ import annotations

import importlib.util

import pytest

import servers
from tests.support.real_servers import decline

from ..crashes import conftest as crashes
from .campaign import FILES, Campaign, Plan
from .report import row_of, text_of

chance = crashes.chance
STORES = [
    *(name for name in FILES if "apsw" not in name or importlib.util.find_spec("apsw")),
    "postgres",
    "valkey",
    "mongo",
]
SHORT = Plan(kills=4, server_kills=2, zombies=1)


# apsw is not watched: the triggers that write every move down take SQLite off its fast path
@pytest.mark.parametrize("store", STORES)
async def test_nothing_is_lost_stuck_or_doubled(store, tmp_path, chance):
    try:
        campaign = Campaign(store, tmp_path, chance)
    except servers.NotAvailable as missing:
        decline(store, missing)
    verdict = await campaign.run(SHORT, watch=store != "sqlite+apsw")
    text = text_of(row_of(store, campaign.done, verdict), campaign.done, verdict)
    print(text)
    assert verdict.good, text
    assert (campaign.done.kills, campaign.done.server_kills, campaign.done.zombies) == (4, 2, 1)
    assert campaign.done.stale_holds > 0, "the frozen worker went on before another one had its jobs"
    assert verdict.jobs > 40
