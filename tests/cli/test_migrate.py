"""`perdure migrate`."""

import pytest


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "up"]])
def test_up(shop, command):
    first = shop.json(*command)
    assert first["migrations"][0]["number"] == 1
    assert shop.json(*command) == {"dry_run": False, "migrations": []}
    assert "up to date" in shop.perdure(*command).output
    assert shop.json("jobs", "count") == {"count": 0}


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "up"]])
def test_a_dry_run_prints_the_sql_and_makes_nothing(shop, command):
    text = shop.perdure(*command, "--dry-run").output
    assert text.startswith("-- 0001 ")
    assert "CREATE TABLE" in text.upper()
    assert "CREATE TABLE" in shop.json(*command, "--dry-run")["migrations"][0]["sql"].upper()
    assert not (shop.folder / "shop.db").exists()


def test_status(shop):
    before = shop.perdure("migrate", "status")
    assert before.exit_code == 1
    assert "schema version 0 of" in before.output
    assert "to be run: 0001" in before.output
    assert not (shop.folder / "shop.db").exists()
    shop.perdure("migrate")
    after = shop.json("migrate", "status")
    assert after["version"] == after["newest"]
    assert after["pending"] == []


def test_the_store_of_an_app(shop):
    assert shop.perdure("migrate", "--app", "shop:app").exit_code == 0
    assert (shop.folder / "shop.db").exists()


def test_options_go_behind_the_subcommand(shop):
    assert shop.perdure("migrate", "--dry-run", "status").exit_code == 2


def test_nothing_to_migrate(shop):
    done = shop.perdure("migrate", "--url", "memory://")
    assert done.exit_code == 1
    assert "nothing to migrate" in done.output
