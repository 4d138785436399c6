"""The star import brings the names with their types. Read by type checkers, never run."""

from __future__ import annotations

from typing import assert_type

from perdure import *  # noqa: F403

app = Perdure("memory://")  # noqa: F405
assert_type(app.jobs.sync.find(state=State.DEAD), Page[Job])  # noqa: F405
