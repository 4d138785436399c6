"""The suites by name. A new store adds a package with a `SUITE` and one line here."""

from importlib import import_module

from .suite import Suite

SUITES = {name: f"benchmarks.{name}" for name in ("mongo", "postgres", "redis", "sqlite")}


def suite_named(name: str) -> Suite:
    suite = import_module(SUITES[name]).SUITE
    assert isinstance(suite, Suite)
    return suite
