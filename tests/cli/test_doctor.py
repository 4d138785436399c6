"""`perdure doctor`: each check, well and unwell."""

import asyncio
import json
import os

import pytest


def checks(shop, *arguments):
    done = shop.perdure("doctor", *arguments, "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == (1 if document["status"] == "fail" else 0)
    return {check["name"]: check for check in document["checks"]}


def test_all_is_well(shop):
    asyncio.run(_open(shop))
    found = checks(shop, "--app", "shop:app")
    assert [(check["name"], check["status"]) for check in found.values() if check["status"] != "ok"] == []
    assert {"file", "disk", "schema", "durability", "clock", "workers", "tasks"} < set(found)
    assert found["durability"]["found"].startswith("grade B")
    assert {check["remedy"] for check in found.values()} == {None}
    text = shop.perdure("doctor").output
    assert text.splitlines()[-1].endswith(" ok, 0 to look at, 0 failed")


async def _open(shop):
    async with shop.app:
        await shop.app.jobs.count()


def test_what_to_look_at(shop):
    shop.fill(work=True)
    shop.enqueue("add", 1, 2)
    shop.enqueue("send", "x@y.z")
    assert shop.perdure("queues", "pause", "mail").exit_code == 0
    found = checks(shop)
    assert found["workers"]["status"] == "warn"
    assert "waiting: 2 jobs" in found["workers"]["found"]
    assert (found["dead letters"]["status"], found["dead letters"]["found"]) == ("warn", "1 dead letter")
    assert found["paused queues"]["status"] == "warn"
    assert "mail (2 jobs" in found["paused queues"]["found"]
    assert found["paused queues"]["remedy"] == "perdure queues resume mail"
    text = shop.perdure("doctor").output
    assert "→ start: perdure worker" in text


def test_tasks_that_nobody_knows(shop):
    shop.fill()
    (shop.folder / "shop_less.py").write_text(
        f"from perdure import Perdure\napp = Perdure({shop.url!r})\n@app.task\ndef add(a: int, b: int): ...\n"
    )
    found = checks(shop, "--app", "shop_less:app")["tasks"]
    assert found["status"] == "warn"
    assert found["found"] == "nobody knows broken (1 job), send (2 jobs)"


def test_a_file_that_is_not_there(shop):
    found = checks(shop, "--url", "sqlite:///typo.db")
    assert list(found) == ["url", "file"]
    assert found["file"]["status"] == "fail"
    assert not (shop.folder / "typo.db").exists()


def test_a_file_that_is_no_database(shop):
    (shop.folder / "poem.db").write_text("roses are red " * 100)
    found = checks(shop, "--url", "sqlite:///poem.db")
    assert found["schema"]["status"] == "fail"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_cannot_be_written(shop):
    shop.fill()
    (shop.folder / "shop.db").chmod(0o400)
    assert checks(shop)["file"]["status"] == "fail"


def test_an_unknown_scheme(shop):
    found = checks(shop, "--url", "sqlte:///shop.db")
    assert found["url"]["status"] == "fail"
    assert "sqlite://" in found["url"]["found"]


def test_a_store_that_is_not_migrated(shop):
    (shop.folder / "empty.db").touch()
    assert checks(shop, "--url", "sqlite:///empty.db")["schema"]["status"] == "fail"


def test_a_journal_that_can_lose_commits(shop):
    """Which SQLite this runs on decides whether there is something to warn of."""
    shop.fill()
    found = checks(shop, "--url", f"{shop.url}?journal=wal")["durability"]
    assert "journal wal" in found["found"]
    assert (found["status"] == "warn") == ("can lose commits" in found["found"])
