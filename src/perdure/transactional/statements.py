"""Runs statements on a connection that a caller owns.

A script is a generator: it yields statements and is sent their rows. So one script serves connections that block and
connections that are awaited. An adapter gives such a connection the few verbs that a script needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from ..errors import InvalidCall, PerdureError

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


class Statement(NamedTuple):
    """A statement with at most one parameter, written as `?`; it holds no other question mark or percent sign."""

    text: str
    parameter: str | None = None
    answers: bool = False  # its rows are wanted

    def written(self, placeholder: str) -> str:
        """The text as another driver writes its parameter."""
        return self.text.replace("?", placeholder)

    @property
    def parameters(self) -> tuple[str, ...]:
        return () if self.parameter is None else (self.parameter,)


class Tells(Protocol):
    """Who wakes the workers: at once, or soon after."""

    def now(self) -> None: ...
    def soon(self) -> None: ...


class _Joined(Protocol):
    """What every caller's connection can say about itself."""

    @property
    def dialect(self) -> str:
        """The kind of database, as SQLAlchemy and Django call it."""

    def driver(self) -> Any:
        """The driver's own connection below."""

    def check(self) -> None:
        """Raise when it is closed, aborted, or would commit each statement by itself."""

    def after_commit(self, teller: Tells) -> None:
        """Call the wake-up after the commit, where the library reports it."""


class CallerConnection(_Joined, Protocol):
    """A connection that blocks."""

    def execute(self, statement: Statement) -> Rows: ...


class AsyncCallerConnection(_Joined, Protocol):
    """A connection that is awaited."""

    async def execute(self, statement: Statement) -> Rows: ...


StatementScript = Generator[Statement, Rows, T]
Explain = Callable[[BaseException], PerdureError | None]


def run_script(
    line: Callable[[], CallerConnection], talk: Callable[[CallerConnection], StatementScript[T]], explain: Explain
) -> T:
    """Hold a talk on a connection that blocks."""
    with _in_our_words(explain):
        reached = line()
        said = talk(reached)
        try:
            statement = next(said)
            while True:
                statement = said.send(_read(reached.execute(statement)))
        except StopIteration as over:
            value: T = over.value
            return value
        finally:
            said.close()


async def run_script_async(
    line: AsyncCallerConnection, talk: Callable[[AsyncCallerConnection], StatementScript[T]], explain: Explain
) -> T:
    """Hold a talk on a connection that is awaited."""
    with _in_our_words(explain):
        said = talk(line)
        try:
            statement = next(said)
            while True:
                statement = said.send(_read(await line.execute(statement)))
        except StopIteration as over:
            value: T = over.value
            return value
        finally:
            said.close()


def _read(rows: Rows) -> Rows:
    """Rows with texts in them; where the caller's session has no encoding, its driver returns bytes."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]


@contextmanager
def _in_our_words(explain: Explain) -> Iterator[None]:
    """Errors of the caller's driver, whatever wraps them, as ours, with what to do."""
    try:
        yield
    except PerdureError:
        raise
    except Exception as error:
        root = _root(error)
        if type(root).__name__ == "SynchronousOnlyOperation":
            raise InvalidCall(
                f"connection= cannot be used from here: {root}; enqueue where the connection lives, "
                "with the blocking form (task.sync.enqueue) in synchronous code"
            ) from error
        told = explain(root)
        if told is None:
            error.add_note("in an enqueue with connection=: roll the transaction back and repeat all of it")
            raise
        raise told from error


def _root(error: BaseException) -> BaseException:
    while True:
        inner = getattr(error, "orig", None) or error.__cause__
        if not isinstance(inner, BaseException):
            return error
        error = inner
