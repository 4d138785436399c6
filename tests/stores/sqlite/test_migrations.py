"""The machinery of migrations, with a schema of two versions (the folder `two_versions`)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure import StoreError
from perdure.storage import migrations
from perdure.storage.migrations import Migration, Status, migrations_in
from perdure.storage.sqlite.schema import load_migrations, load_outbox_migrations
from perdure.storage.urls import ledger

from .helpers import finish, process

FOLDER = Path(__file__).parent / "two_versions"
BOTH = migrations_in(FOLDER)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "letters.db"


@pytest.fixture
def book(path):
    """The ledger of a file."""
    found, _, close = ledger(f"sqlite:///{path}")
    yield found
    close()


def rows(path, statement):
    with closing(sqlite3.connect(path)) as raw, raw:
        return raw.execute(statement).fetchall()


def names(path):
    return {name for (name,) in rows(path, "SELECT name FROM sqlite_schema WHERE name GLOB 'perdure_*'")}


@pytest.mark.parametrize("load", [load_migrations, load_outbox_migrations])
def test_a_schema_that_was_never_released_has_one_migration(load):
    assert [migration.number for migration in load()] == [1]


def test_a_new_file_gets_every_version(path, book):
    assert migrations.status(book, BOTH) == Status(0, 2, tuple(BOTH))
    assert migrations.up(book, BOTH) == BOTH
    assert migrations.status(book, BOTH) == Status(2, 2, ())
    assert {"perdure_letters", "perdure_senders", "perdure_meta"} <= names(path)
    assert migrations.up(book, BOTH) == []
    migrations.check(book, BOTH)


def test_a_file_of_the_first_version_keeps_its_rows(path, book):
    assert migrations.up(book, BOTH[:1]) == BOTH[:1]
    rows(path, "INSERT INTO perdure_letters (text) VALUES ('a'), ('b')")
    with pytest.raises(StoreError, match="has schema version 1, and this Perdure needs 2: run `perdure migrate`"):
        migrations.check(book, BOTH)
    assert migrations.up(book, BOTH) == BOTH[1:]
    assert rows(path, "SELECT text, sender FROM perdure_letters") == [("a", "unknown"), ("b", "unknown")]
    assert rows(path, "SELECT name FROM perdure_senders") == [("unknown",)]
    migrations.check(book, BOTH)


def test_a_dry_run_changes_nothing(path, book):
    assert migrations.up(book, BOTH, dry_run=True) == BOTH
    assert migrations.status(book, BOTH) == Status(0, 2, tuple(BOTH))
    assert names(path) == set()


def test_a_version_that_fails_leaves_the_file_as_it_was(path, book):
    migrations.up(book, BOTH[:1])
    broken = Migration(2, "broken", BOTH[1].text + "INSERT INTO perdure_nothing VALUES (1);\n")
    with pytest.raises(sqlite3.OperationalError, match="perdure_nothing"):
        migrations.up(book, [BOTH[0], broken])
    assert migrations.status(book, BOTH).version == 1
    assert "perdure_senders" not in names(path)
    assert migrations.up(book, BOTH) == BOTH[1:]


def test_a_file_of_a_newer_perdure_is_refused(book):
    migrations.up(book, BOTH)
    with pytest.raises(StoreError, match="has schema version 2, and this Perdure knows only up to 1"):
        migrations.status(book, BOTH[:1])


def test_a_step_that_another_migrator_has_run_is_not_run_again(book):
    assert book.run(BOTH[0])
    assert not book.run(BOTH[0])


def test_several_migrators_at_once(path):
    code = """
    from pathlib import Path
    from perdure.storage import migrations
    from perdure.storage.urls import ledger
    book, _, close = ledger(f"sqlite:///{path}")
    known = migrations.migrations_in(Path(sys.argv[2]))
    say("ready")
    sys.stdin.readline()
    say(*[step.number for step in migrations.up(book, known)])
    close()
    """
    others = [process(path, code, FOLDER) for _ in range(4)]
    for other in others:
        assert other.stdout.readline() == "ready\n"
    for other in others:
        other.stdin.write("\n")
        other.stdin.flush()
    ran = [finish(other).split() for other in others]
    assert sorted(number for numbers in ran for number in numbers) == ["1", "2"]


def test_a_gap_in_the_numbers_is_a_mistake(tmp_path):
    (tmp_path / "0002_late.sql").write_text("SELECT 1;")
    with pytest.raises(ValueError, match="not numbered without gaps"):
        migrations_in(tmp_path)
