"""The pytest plugin: fixtures for code that enqueues. It imports Perdure only when a test uses a fixture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from perdure.app import Perdure

    from .clock import ManualClock


@pytest.fixture
def perdure_clock() -> ManualClock:
    """A clock that the test moves. Pass it to `Perdure(clock=…)`, or use `perdure_memory`."""
    from .clock import ManualClock

    return ManualClock()


@pytest.fixture
def perdure_memory(perdure_clock: ManualClock) -> Iterator[Callable[[Perdure], Perdure]]:
    """Give an app an empty store in memory and the test's clock until the test ends: `app = perdure_memory(app)`."""
    from .swap_store import swap

    with ExitStack() as stack:

        def in_memory(app: Perdure) -> Perdure:
            stack.enter_context(swap(app, "memory://", clock=perdure_clock))
            return app

        yield in_memory


@pytest.fixture
def perdure_sqlite(tmp_path: Path, perdure_clock: ManualClock) -> Iterator[Callable[[Perdure, Path | None], Perdure]]:
    """Give an app an empty store in an SQLite file and the test's clock until the test ends: `perdure_sqlite(app)`, or
    `perdure_sqlite(app, path)` for the file of the test's own `connection=`."""
    from .swap_store import swap

    with ExitStack() as stack:

        def in_a_file(app: Perdure, path: Path | None = None) -> Perdure:
            file = quote(str((path or tmp_path / "perdure.db").absolute()))
            stack.enter_context(swap(app, f"sqlite:///{file}", clock=perdure_clock))
            return app

        yield in_a_file


@pytest.fixture
def perdure_postgresql(perdure_clock: ManualClock) -> Iterator[Callable[[Perdure], Perdure]]:
    """Give an app an empty schema in the database that PERDURE_TEST_POSTGRESQL names, and the test's clock, until the test
    ends. Then drop the schema. Without the variable, skip the test."""
    url = os.environ.get("PERDURE_TEST_POSTGRESQL")
    if not url:
        pytest.skip("PERDURE_TEST_POSTGRESQL names no database: set it to postgresql://user@host/database")
    import psycopg

    from .swap_store import swap

    base, _, query = url.partition("?")
    options = [part for part in query.split("&") if part and not part.startswith("schema=")]
    schema = f"perdure_test_{uuid4().hex[:12]}"

    with ExitStack() as stack:

        def drop() -> None:
            ours = [part for part in options if not part.startswith(("signals=", "pooler="))]
            with psycopg.connect(f"{base}?{'&'.join(ours)}", autocommit=True) as connection:
                connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')

        stack.callback(drop)

        def in_a_schema(app: Perdure) -> Perdure:
            stack.enter_context(swap(app, f"{base}?{'&'.join([*options, f'schema={schema}'])}", clock=perdure_clock))
            return app

        yield in_a_schema
