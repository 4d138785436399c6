"""The driver leaves sockets whose connection was refused to the garbage collector, which complains of them in any later
test. So they are collected where they were made."""

import gc
import warnings

import pytest


@pytest.fixture(autouse=True)
def _forgotten_sockets():
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
