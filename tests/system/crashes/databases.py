"""What the crash and race tests do with a database besides the store: tables of their own, triggers that write every move
of a job down, and a look at the rows in the end."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

UNFINISHED = "state not in ('succeeded', 'skipped', 'dead', 'cancelled')"


class Database(Protocol):
    writes_effects: bool  # whether handlers can write in the transaction of their completion
    writes_by_thread: bool  # and whether blocking ones can
    watches_moves: bool  # whether `prepare` can have every move written down
    effect: str  # the SQL statement by which a handler writes its effect

    async def write_effect(self, tx: Any, job: str, attempt: int) -> None:
        """Write a handler's effect in its transaction."""

    def prepare(self, *, watch: bool) -> None:
        """Make the table of effects and, when asked, the triggers that write every move down."""

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """The rows of a table, or the jobs; none if there is no such table."""

    def held_by(self, worker: str) -> list[tuple[str, int]] | None:
        """(id, losses) of what a stopped worker holds; None when it was stopped in the middle of a write."""

    def locked_by(self, pids: Collection[int]) -> bool:
        """Whether these processes, which were stopped, hold a lock that others have to wait for."""

    def unfinished(self) -> int: ...

    def sound(self) -> None:
        """It is whole."""

    def caller(self) -> Caller: ...


class Caller(Protocol):
    """A connection of a program of its own, with a table `orders`."""

    connection: Any

    def begin(self) -> None: ...

    def order(self, job: str) -> None: ...

    def end(self, *, keep: bool) -> None: ...

    def close(self) -> None: ...


def database_of(url: str) -> Database:
    from .databases_without_sql import Mongo, Redis

    kinds: dict[str, type[Any]] = {"postgresql": Postgres, "redis": Redis, "mongodb": Mongo}
    database: Database = kinds.get(url.partition(":")[0], Sqlite)(url)
    return database


class _Sql:
    """What the two databases with SQL have in common."""

    writes_effects = writes_by_thread = watches_moves = True
    effect: str

    async def write_effect(self, tx: Any, job: str, attempt: int) -> None:
        await tx.execute(self.effect, (job, attempt))


# ---- SQLite ----------------------------------------------------------------------------------------
class Sqlite(_Sql):
    effect = "insert into effects values (?, ?)"

    def __init__(self, url: str) -> None:
        self._scheme, _, path = url.partition(":///")
        self._path = Path(path)

    def prepare(self, *, watch: bool) -> None:
        with self._connected() as connection:
            connection.execute("create table if not exists effects (job text not null, attempt integer not null)")
            for statement in SQLITE_MOVES if watch else ():
                connection.execute(statement)

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        jobs = (
            "perdure_jobs join perdure_bodies as body on body.number = perdure_jobs.number "
            "left join perdure_policies on perdure_policies.number = body.policy"
        )
        with self._connected() as connection:
            try:
                cursor = connection.execute(f"select * from {table or jobs}")
            except Exception as missing:
                if "no such table" in str(missing):
                    return []
                raise
            # asked for at each row: one of the drivers has no names to tell when the last row was read
            return [dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor]

    def held_by(self, worker: str) -> list[tuple[str, int]] | None:
        statement = "select id, losses from perdure_jobs where state = 'running' and leased_by = ?"
        try:
            with self._connected(0.05) as connection:
                held: list[tuple[str, int]] = connection.execute(statement, (worker,)).fetchall()
                return held
        except Exception as error:
            if not _is_busy(error):
                raise
            return None

    def locked_by(self, pids: Collection[int]) -> bool:
        """As the kernel lists its locks. In WAL mode a lock for reading keeps nobody out."""
        wal = Path(f"{self._path}-wal").exists()
        turns = self._path.with_name(f"{self._path.name}-perdure")
        any_kind = {_inode(turns / "next"), _inode(turns / "turn"), *(() if wal else (_inode(self._path),))}
        for_writing = {_inode(self._path), _inode(Path(f"{self._path}-shm"))}
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" in words or int(words[4]) not in pids:  # an arrow: it only waits
                continue
            inode = words[5].rpartition(":")[2]
            if inode in any_kind or (words[3] == "WRITE" and inode in for_writing):
                return True
        return False

    def unfinished(self) -> int:
        with self._connected() as connection:
            count: int = connection.execute(f"select count(*) from perdure_jobs where {UNFINISHED}").fetchall()[0][0]
            return count

    def sound(self) -> None:
        with self._connected() as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]

    @contextmanager
    def _connected(self, timeout: float = 10.0) -> Iterator[Any]:
        """By the driver of the store: of two SQLite libraries in one process, each drops the other's locks on a file."""
        connection: Any
        if self._scheme == "sqlite+apsw":
            import apsw

            connection = apsw.Connection(str(self._path))
            connection.setbusytimeout(int(timeout * 1000))
        else:
            connection = sqlite3.connect(self._path, timeout=timeout, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    def caller(self) -> Caller:
        return SqliteCaller(self._scheme, str(self._path))


def _inode(path: Path) -> str:
    return str(path.stat().st_ino) if path.exists() else ""


def _is_busy(error: Exception) -> bool:
    return type(error).__name__ in ("OperationalError", "BusyError") and "locked" in str(error)


class SqliteCaller:
    def __init__(self, scheme: str, path: str) -> None:
        if scheme == "sqlite+apsw":
            import apsw

            self.connection: Any = apsw.Connection(path)
            self.connection.setbusytimeout(30_000)
        else:
            self.connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self.connection.execute("create table if not exists orders (job text)")

    def begin(self) -> None:
        self.connection.execute("begin immediate")

    def order(self, job: str) -> None:
        self.connection.execute("insert into orders values (?)", (job,))

    def end(self, *, keep: bool) -> None:
        self.connection.execute("commit" if keep else "rollback")

    def close(self) -> None:
        self.connection.close()


# The database itself writes down every change of a row, in the transaction that makes it.
SQLITE_MOVES = (
    """create table moves (
    number integer primary key, id text, was text, now text, attempt integer, stamp integer, accepted_stamp integer,
    failures integer, losses integer, version integer, key text, holds_key integer, result_changed integer, worker text)""",
    """create trigger watch_inserts after insert on perdure_jobs begin
    insert into moves (id, was, now, attempt, stamp, accepted_stamp, failures, losses, version, key, holds_key,
        result_changed, worker)
    values (new.id, null, new.state, new.attempt, new.stamp, new.accepted_stamp, new.failures, new.losses, new.version,
        new.unique_key, new.holds_key, 0, null);
end""",
    """create trigger watch_updates after update on perdure_jobs begin
    insert into moves (id, was, now, attempt, stamp, accepted_stamp, failures, losses, version, key, holds_key,
        result_changed, worker)
    values (new.id, old.state, new.state, new.attempt, new.stamp, new.accepted_stamp, new.failures, new.losses, new.version,
        new.unique_key, new.holds_key, new.result is not old.result,
        old.leased_by);
end""",
)


# ---- PostgreSQL ------------------------------------------------------------------------------------
class Postgres(_Sql):
    def __init__(self, url: str) -> None:
        self._url, _, self._schema = url.partition("?schema=")
        self.effect = f"insert into {self._schema}.effects values (%s, %s)"

    def prepare(self, *, watch: bool) -> None:
        with self._connected() as connection:
            schema = self._schema
            connection.execute(f"create table {schema}.effects (job text not null, attempt integer not null)")
            connection.execute(f"create table {schema}.orders (job text not null)")
            if watch:
                connection.execute(POSTGRES_MOVES.replace("{schema}", schema))

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        from psycopg.errors import UndefinedTable

        with self._connected() as connection:
            try:
                cursor = connection.execute(f"select * from {self._schema}.{table}" if table else self._jobs())
            except UndefinedTable:
                return []
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def held_by(self, worker: str) -> list[tuple[str, int]] | None:
        statement = f"select id::text, coalesce(losses, 0) from {self._schema}.holds where leased_by = %s and not ended"
        with self._connected() as connection:
            return connection.execute(statement, (worker,)).fetchall()

    def locked_by(self, pids: Collection[int]) -> bool:
        return False  # a stopped client keeps nothing locked but its own jobs

    def unfinished(self) -> int:
        with self._connected() as connection:
            statement = f"select count(*) from ({self._jobs()}) as jobs where {UNFINISHED}"
            return connection.execute(statement).fetchone()[0]

    def sound(self) -> None:
        """Every job has exactly one row that says where it stands, and every such row its job."""
        places = " union all ".join(
            f"select id from {self._schema}.{table} {only}"
            for table, only in (("waiting", ""), ("holds", "where not ended"), ("outcomes", ""))
        )
        with self._connected() as connection:
            statement = (
                f"select coalesce(jobs.id, places.id), count(places.id) from {self._schema}.jobs"
                f" full join ({places}) as places using (id) group by 1 having count(places.id) <> 1 or count(jobs.id) = 0"
            )
            assert connection.execute(statement).fetchall() == []

    def caller(self) -> Caller:
        return PostgresCaller(self._url, self._schema)

    def _jobs(self) -> str:
        from perdure.storage.postgres.queries import load

        parts = load("record", self._schema)
        return f"select {parts['record']} from {self._schema}.jobs j {parts['moving']}"

    def _connected(self) -> Any:
        import psycopg

        return psycopg.connect(self._url, autocommit=True)


class PostgresCaller:
    def __init__(self, url: str, schema: str) -> None:
        import psycopg

        self._schema = schema
        self.connection = psycopg.connect(url)

    def begin(self) -> None:
        pass  # by its first statement

    def order(self, job: str) -> None:
        self.connection.execute(f"insert into {self._schema}.orders values (%s)", (job,))

    def end(self, *, keep: bool) -> None:
        self.connection.commit() if keep else self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


POSTGRES_MOVES = """
create table {schema}.moves (
    number bigserial primary key, id text, was text, now text, attempt integer, stamp bigint, accepted_stamp bigint,
    failures integer, losses integer, version integer, key text, holds_key integer, worker text, leased_by text);
create index on {schema}.moves (id);
create function {schema}.write_down() returns trigger language plpgsql as $$
declare
    last {schema}.moves;
    row jsonb := to_jsonb(new);
    state text := case tg_table_name when 'holds' then 'running' else row ->> 'state' end;
begin
    if tg_op = 'UPDATE' and row -> 'version' = to_jsonb(old) -> 'version' then
        return null;  -- a renewal, a note, the end of a job whose handler still runs
    end if;
    select * into last from {schema}.moves where id = row ->> 'id' order by number desc limit 1;
    insert into {schema}.moves (
        id, was, now, attempt, stamp, accepted_stamp, failures, losses, version, key, holds_key, worker, leased_by)
    values (row ->> 'id', last.now, state, coalesce((row ->> 'attempt')::integer, 0), (row ->> 'stamp')::bigint,
        (row ->> 'accepted_stamp')::bigint, coalesce((row ->> 'failures')::integer, 0),
        coalesce((row ->> 'losses')::integer, 0), coalesce((row ->> 'version')::integer, 1),
        (select unique_key from {schema}.jobs where jobs.id = (row ->> 'id')::uuid),
        (row ->> 'held_key' is not null)::integer, last.leased_by, row ->> 'leased_by');
    return null;
end $$;
create trigger watch after insert or update on {schema}.waiting for each row execute function {schema}.write_down();
create trigger watch after insert or update on {schema}.holds for each row execute function {schema}.write_down();
create trigger watch after insert or update on {schema}.outcomes for each row execute function {schema}.write_down();
"""
