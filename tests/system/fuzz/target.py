"""What a store has to offer so that the fuzzer can spoil it: its tables, their rows, and every bad value for every field."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from perdure.core.record import NewJob
from perdure.storage.contract import Storage


class Refused(Exception):
    """The database does not take this value in this field."""


class Missing(Exception):
    """There is no such row: the job that was given has none, or the table is empty."""


class Mutation(NamedTuple):
    """A bad value for a stored field. `write(job)` writes it into the row of this job, or into any row of a table whose rows
    belong to no single job. It gives the job that is spoiled by it, or None. It runs in a thread."""

    where: str  # table and field
    value: str  # the name of the bad value
    write: Callable[[str], str | None]
    of_job: bool = True  # whether it spoils the job that it is given

    @property
    def table(self) -> str:
        return self.where.partition(".")[0]

    @property
    def field(self) -> str:
        """The field alone, of a `where` such as "kv.text of undo"."""
        return self.where.partition(".")[2].partition(" of ")[0]

    @property
    def name(self) -> str:
        """What `--only` takes."""
        return f"{self.where} = {self.value}"


class Target(ABC):
    """A store under the fuzzer. Tables are named without prefix or schema; a key or collection is a table here."""

    url: str
    at_once: int = 400  # mutations of one round
    # tables whose rows a worker takes away at once: they are spoiled while no worker runs
    short_lived: frozenset[str] = frozenset()
    # tables that are not spoiled here, each with the reason
    left_alone: Mapping[str, str] = {}

    @abstractmethod
    def rows(self) -> dict[str, int]:
        """Every table that the store has made, with the number of its rows."""

    @abstractmethod
    def mutations(self) -> list[Mutation]:
        """Every stored field times every bad value. Called once the store holds rows in every table."""

    @abstractmethod
    async def seed(self, store: Storage, followers: Sequence[NewJob], parents: Sequence[str]) -> None:
        """Put these followers on record in a way that leaves their edges unresolved. No worker runs."""

    @abstractmethod
    def close(self) -> None:
        """Close connections of its own."""
