"""What is still to come is said to be so."""

import pytest

import perdure
from perdure import Perdure, Registry

TO_COME = "is not in this version of Perdure"


class Mine(Perdure):
    @property
    def broken(self):
        return self.nothing


@pytest.mark.parametrize("name", ["health", "metrics", "stats", "observe", "asgi"])
def test_verbs_of_the_app_that_are_to_come(name):
    for app in (Perdure("memory://"), Perdure("memory://").sync, Mine("memory://")):
        with pytest.raises(AttributeError, match=rf"{name} {TO_COME}"):
            getattr(app, name)
        assert not hasattr(app, name)


def test_verbs_of_others_that_are_to_come():
    app = Perdure("memory://")
    for room in (app.jobs, app.jobs.sync):
        with pytest.raises(AttributeError, match=TO_COME):
            room.explain("x")
    with pytest.raises(AttributeError, match=TO_COME):
        Registry().observe(object)
    with pytest.raises(AttributeError, match=TO_COME):
        _ = perdure.Alert
    with pytest.raises(ImportError):
        from perdure import Event  # noqa: F401


def test_what_nobody_promised_is_missing_as_anywhere_else():
    app = Mine("memory://")
    for owner, name in (
        (app, "helth"),
        (app.sync, "helth"),
        (app.jobs, "health"),
        (Registry(), "stats"),
        (app, "broken"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{name if name != 'broken' else 'nothing'}'"):
            getattr(owner, name)
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Alrt'"):
        _ = perdure.Alrt
