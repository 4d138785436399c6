"""Long lists of calls: how they are cut into chunks for a store."""

from types import SimpleNamespace

import pytest

from perdure.client.call_list import CallList
from perdure.client.client import _chunk_size
from perdure.storage.contract import Storage


class _Given(CallList):
    light = True  # type: ignore[assignment]

    def __init__(self, count: int, light: bool) -> None:
        self._calls = [None] * count  # type: ignore[list-item]
        self.light = light  # type: ignore[misc,assignment]


@pytest.mark.parametrize(
    ("count", "light", "most", "ahead", "size"),
    [
        (5_000, True, 1_700, 3, 1_667),  # one round of all connections
        (10_000, True, 1_700, 3, 1_667),  # two
        (600, True, 1_700, 3, 500),  # never smaller than what is stored all or none
        (5_000, False, 1_700, 3, 500),  # heavy payloads travel in small chunks
        (5_000, True, 2_500, 2, 2_500),
        (5_000, True, 500, 4, 500),
        (5_000, True, 500, 1, 500),
    ],
)
def test_no_chunk_of_a_list_is_stored_alone_at_the_end(
    count: int, light: bool, most: int, ahead: int, size: int
) -> None:
    storage: Storage = SimpleNamespace(bulk_chunk=most, bulk_in_flight=ahead)  # type: ignore[assignment]
    assert _chunk_size(_Given(count, light), storage) == size
