"""Real servers are started, addressed, killed, brought back and cleared away."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import servers
from servers import process
from tests.support import real_servers
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "servers"]


@pytest.fixture(params=servers.KINDS)
def kind(request):
    return request.param


@pytest.fixture
def own(kind, tmp_path, monkeypatch):
    """A server of this test's own, whatever the environment names."""
    monkeypatch.delenv(servers.kinds.CLASSES[kind].variable, raising=False)
    try:
        server = servers.start(kind, within=tmp_path)
    except servers.NotAvailable as missing:
        real_servers.decline(kind, missing)
    with server:
        yield server


def write(url, text):
    """Keep a text where the address leads, in the way of its server."""
    match url.partition(":")[0]:
        case "postgresql":
            import psycopg

            address, _, schema = url.partition("?schema=")
            with psycopg.connect(address) as connection:
                connection.execute(f"create schema {schema}")
                connection.execute(f"create table {schema}.kept (text text)")
                connection.execute(f"insert into {schema}.kept values (%s)", [text])
        case "redis":
            import redis

            address, _, prefix = url.partition("?prefix=")
            with redis.Redis.from_url(address) as client:
                client.set(f"{prefix}:kept", text)
        case "mongodb":
            import pymongo

            with pymongo.MongoClient(url) as client:
                client.get_default_database().kept.insert_one({"text": text})


def read(url):
    """The text that was kept there; None if there is none."""
    match url.partition(":")[0]:
        case "postgresql":
            import psycopg

            address, _, schema = url.partition("?schema=")
            with psycopg.connect(address) as connection:
                if connection.execute("select to_regclass(%s)", [f"{schema}.kept"]).fetchone() == (None,):
                    return None
                return connection.execute(f"select text from {schema}.kept").fetchone()[0]
        case "redis":
            import redis

            address, _, prefix = url.partition("?prefix=")
            with redis.Redis.from_url(address, decode_responses=True) as client:
                return client.get(f"{prefix}:kept")
        case "mongodb":
            import pymongo

            with pymongo.MongoClient(url) as client:
                found = client.get_default_database().kept.find_one()
                return found and found["text"]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return _state(pid) != "Z"


def _state(pid):
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()[:1]


RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not RANGE.exists(), reason="the ports of outgoing connections are not known")
def test_no_outgoing_connection_takes_its_port_while_it_is_down():
    first, last = map(int, RANGE.read_text().split())
    ports = {process._free_port() for _ in range(50)}
    assert len(ports) > 40
    assert not [port for port in ports if first <= port <= last]


def test_what_is_kept_in_one_fresh_place_is_not_in_another(own):
    first, second = own.fresh(), own.fresh()
    write(first, "a")
    assert read(first) == "a"
    assert read(second) is None


def test_what_was_kept_outlives_a_kill(own):
    place = own.fresh()
    write(place, "kept")
    before = own.process.pid
    own.kill()
    assert not alive(before)
    own.restart()
    assert own.process.pid != before
    assert read(place) == "kept"


def test_a_restart_in_order_keeps_all_too(own):
    place = own.fresh()
    write(place, "kept")
    own.restart()
    assert read(place) == "kept"


def test_stop_leaves_nothing_behind(own, tmp_path):
    pid = own.process.pid
    own.stop()
    assert not alive(pid)
    assert list(tmp_path.iterdir()) == []
    own.stop()


def test_a_killed_user_takes_its_server_along(kind, monkeypatch):
    monkeypatch.delenv(servers.kinds.CLASSES[kind].variable, raising=False)
    program = (
        "import servers, sys, time\n"
        "try: server = servers.start(sys.argv[1])\n"
        "except servers.NotAvailable as missing: sys.exit(f'missing {missing}')\n"
        "print(server.process.pid, server.process.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, kind], cwd=ROOT, stdout=subprocess.PIPE, text=True) as user:
        told = user.stdout.readline().split()
        if not told:
            real_servers.decline(kind, servers.NotAvailable("not found by another process either"))
        pid, folder = int(told[0]), Path(told[1])
        assert alive(pid)
        user.kill()
    wait_until(lambda: not alive(pid) and not folder.exists())


def test_users_of_one_folder_share_a_server_until_the_last_is_gone(tmp_path, monkeypatch):
    monkeypatch.delenv("PERDURE_TEST_REDIS", raising=False)
    with ThreadPoolExecutor(4) as pool:
        users = list(pool.map(lambda _: servers.shared("valkey", tmp_path), range(4)))
    [pid] = {user.process.pid for user in users}
    place = users[0].fresh()
    write(place, "a")
    for user in users[:-1]:
        user.stop(wait=False)
    assert read(place) == "a"
    users[-1].stop()
    assert not alive(pid)
    with servers.shared("valkey", tmp_path) as another:
        assert another.process.pid != pid
        assert read(another.fresh()) is None


def test_who_comes_while_the_last_one_leaves_gets_a_server_that_works(tmp_path, monkeypatch):
    monkeypatch.delenv("PERDURE_TEST_REDIS", raising=False)

    def visit(_):
        for _ in range(5):
            server = servers.shared("valkey", tmp_path)
            place = server.fresh()
            write(place, "a")
            assert read(place) == "a"
            server.stop(wait=False)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(visit, range(3)))
    wait_until(lambda: not list(tmp_path.glob("server-valkey")))


def test_a_server_of_the_user_is_used_and_left_as_it_was(kind, own, monkeypatch):
    write(mine := own.fresh(), "mine")
    monkeypatch.setenv(servers.kinds.CLASSES[kind].variable, own.url)
    theirs = servers.start(kind)
    assert theirs.process is None
    assert theirs.url == own.url
    write(place := theirs.fresh(), "a")
    with pytest.raises(servers.NotAvailable, match="not ours"):
        theirs.kill()
    theirs.stop()
    assert read(place) is None
    assert read(mine) == "mine"


def test_settings_reach_postgres(tmp_path, monkeypatch):
    import psycopg

    monkeypatch.delenv("PERDURE_TEST_POSTGRESQL", raising=False)

    def setting(name):
        with psycopg.connect(server.url) as connection:
            return connection.execute(f"show {name}").fetchone()[0]

    with servers.start("postgres", within=tmp_path, durable=True, settings={"work_mem": "5MB"}) as server:
        assert (setting("work_mem"), setting("fsync"), setting("listen_addresses")) == ("5MB", "on", "127.0.0.1")
        server.restart(work_mem="6MB")
        assert setting("work_mem") == "6MB"
    with servers.start("postgres", within=tmp_path) as server:
        assert setting("fsync") == "off"


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("PERDURE_TEST_POSTGRESQL", raising=False)
    with pytest.raises(servers.process.NotAnswering, match="no_such_setting"):
        servers.start("postgres", within=tmp_path, settings={"no_such_setting": "1"})
    assert list(tmp_path.iterdir()) == []


def test_in_the_foreground(monkeypatch):
    monkeypatch.delenv("PERDURE_TEST_REDIS", raising=False)
    with subprocess.Popen([*PROGRAM, "valkey"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as shown:
        url = shown.stdout.readline().strip()
        write(f"{url}?prefix=x", "a")
        assert read(f"{url}?prefix=x") == "a"
        shown.send_signal(signal.SIGINT)
        assert shown.wait(30) == 0


@pytest.mark.parametrize(("machine", "told"), [("arm64", "1 skipped"), ("x86_64", "1 failed")])
def test_a_server_that_cannot_be_had_is_named_aloud(tmp_path, machine, told):
    """Where all of them can be had, its absence is a failure."""
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.support.real_servers']\n")
    (tmp_path / "test_it.py").write_text(
        "import servers\n"
        "from tests.support import real_servers\n"
        "def test(monkeypatch):\n"
        "    monkeypatch.setattr('sys.platform', 'linux')\n"
        f"    monkeypatch.setattr('platform.machine', lambda: {machine!r})\n"
        "    real_servers.decline('mongo', servers.NotAvailable('no wheel'))\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert told in run.stdout
    assert ("! NOT TESTED !" in run.stdout) == (machine == "arm64")
    assert "server not available: mongo: no wheel" in run.stdout
