"""What all stores check alike when they open: durability, and the process that opened them."""

import os

import pytest

from perdure.errors import StoreError, StoreMisconfigured
from perdure.storage.opening import check_durability, refuse_after_fork
from perdure.storage.types import Durability


@pytest.mark.parametrize("grade", "ABCD")
@pytest.mark.parametrize("demand", ["full", "normal", "relaxed"])
def test_durability_that_is_demanded(grade, demand, caplog):
    found = Durability(grade, "fsync is off", "switch it on")
    refused = {"full": "CD", "normal": "D", "relaxed": ""}[demand]
    if grade in refused:
        with pytest.raises(StoreMisconfigured, match=f"redis://here: durability {grade}: fsync is off; switch it on"):
            check_durability(found, demand, "redis://here")
    else:
        check_durability(found, demand, "redis://here")
    assert ("durability C" in caplog.text) == (grade == "C" and demand == "normal")


def test_a_store_is_used_in_the_process_that_opened_it():
    refuse_after_fork(os.getpid(), "here")
    with pytest.raises(StoreError, match="the store here was opened before this process was forked"):
        refuse_after_fork(os.getpid() + 1, "here")
