"""The stores by name: which suite and contender measure each of them, and how many jobs take a few seconds there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..contender import Contender
from ..registry import suite_named
from ..suite import Suite


@dataclass(frozen=True)
class Store:
    suite: Suite
    contender: type[Contender]


def _store(suite: str, contender: str = "perdure") -> Store:
    # What a store writes ahead is not compared, and would take a further process to measure.
    found = replace(suite_named(suite), written=None)
    return Store(found, found.contender(contender))


def _redis() -> Store:
    from ..redis.place import opened

    store = _store("redis")
    return replace(store, suite=replace(store.suite, opened=partial(opened, "redis")))


STORES: dict[str, Callable[[], Store]] = {
    "sqlite": partial(_store, "sqlite"),
    "sqlite+apsw": partial(_store, "sqlite", "perdure-apsw"),
    "postgres": partial(_store, "postgres"),
    "valkey": partial(_store, "redis"),
    "redis": _redis,
    "mongo": partial(_store, "mongo"),
}
JOBS = {"sqlite": 40_000, "sqlite+apsw": 40_000, "postgres": 40_000, "valkey": 60_000, "redis": 60_000, "mongo": 12_000}
