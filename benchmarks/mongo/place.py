"""A place on the benchmark's MongoDB: a folder with the address of a database of its own.

The server is a replica set of one member, with its journal and every other setting as it comes, but for the size of its
cache and its oplog.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import servers
from benchmarks.meter import note_server
from benchmarks.suite import FreshPlace, fresh_folder

ADDRESS = "address"
_versions: list[str] = []


@contextmanager
def opened() -> Iterator[FreshPlace]:
    """A server for the whole run."""
    import pymongo

    numbers = count()
    with servers.start("mongo", durable=True) as server, pymongo.MongoClient(server.url) as client:
        _versions[:] = [client.server_info()["version"]]

        @contextmanager
        def fresh_place() -> Iterator[Path]:
            name = f"bench_{next(numbers)}"
            with fresh_folder() as folder:
                base, _, options = server.url.partition("?")
                (folder / ADDRESS).write_text(f"{base}{name}?{options}")
                note_server(folder, server)
                try:
                    yield folder
                finally:
                    client.drop_database(name)

        yield fresh_place


def version_of_the_run() -> str:
    return _versions[0]


def address(place: Path) -> str:
    return (place / ADDRESS).read_text()


def database(client: Any) -> Any:
    """The database that the address names, with writes that wait for the journals of a majority."""
    from pymongo import WriteConcern

    return client.get_default_database(write_concern=WriteConcern("majority", j=True))
