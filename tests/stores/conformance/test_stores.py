"""Every store against every case that Perdure ships."""

import pytest

from perdure.testing import conformance

from .stores import STORES


@pytest.mark.parametrize("case", conformance.cases(), ids=str)
@pytest.mark.parametrize("store", STORES)
async def test_case(store, case, tmp_path):
    try:
        await conformance.run(case, lambda: STORES[store](tmp_path))
    except conformance.NotOffered as declined:
        pytest.skip(str(declined))


def test_names_are_unique():
    names = [str(case) for case in conformance.cases()]
    assert len(names) == len(set(names))
    assert len(names) > 150
