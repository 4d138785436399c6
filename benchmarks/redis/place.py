"""A place on the benchmark's Valkey: a folder with the address of a server that was emptied just before.

The server writes every change to its append-only file and syncs that once a second, which is what most people run; a
contender may ask for more. The file is made anew before every measurement and never during one, so that no contender pays
for the jobs of another.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import servers
from benchmarks.meter import note_server
from benchmarks.suite import FreshPlace, fresh_folder

APPENDFSYNC = "everysec"
SETTINGS = {"appendonly": "yes", "appendfsync": APPENDFSYNC, "auto-aof-rewrite-percentage": "0"}
ADDRESS = "address"
_versions: list[str] = []


@contextmanager
def opened(kind: str = "valkey") -> Iterator[FreshPlace]:
    """A server for the whole run. Never the user's own, because it is emptied again and again."""
    with servers.start(kind, settings=SETTINGS) as server:
        if server.process is None:
            raise SystemExit(
                "this benchmark empties its server: unset PERDURE_TEST_REDIS, and it starts one of its own"
            )
        with connected(server.url) as client:
            _versions[:] = [str(client.info("server")[f"{kind}_version"])]

        @contextmanager
        def fresh_place() -> Iterator[Path]:
            with fresh_folder() as folder:
                _empty(server.url)
                (folder / ADDRESS).write_text(server.url)
                note_server(folder, server)
                yield folder

        yield fresh_place


def version_of_the_run() -> str:
    return _versions[0]


def address(place: Path) -> str:
    return (place / ADDRESS).read_text()


def connected(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url, decode_responses=True)


def sync_always(place: Path) -> None:
    """From now on until the place is gone, an answer means that it is on disk."""
    with connected(address(place)) as client:
        client.config_set("appendfsync", "always")


def written(place: Path) -> float:
    """Bytes of the append-only file so far."""
    with connected(address(place)) as client:
        found = client.info("persistence")
    return float(found["aof_current_size"]) + float(found["aof_buffer_length"])


def occupied(place: Path) -> float:
    """Bytes of memory that the server uses, without the buffers of its clients and its file."""
    with connected(address(place)) as client:
        found = client.info("memory")
    return float(found["used_memory"]) - float(found["mem_clients_normal"]) - float(found["mem_aof_buffer"])


def _empty(url: str) -> None:
    with connected(url) as client:
        client.config_set("appendfsync", APPENDFSYNC)
        client.flushall()
        client.script_flush()
        client.bgrewriteaof()
        while _rewriting(client):
            time.sleep(0.01)


def _rewriting(client: Any) -> bool:
    found = client.info("persistence")
    return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])
