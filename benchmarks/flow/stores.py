"""An empty store of each kind, as it is run in earnest: everything durable."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import servers

STORES = ("memory", "sqlite", "postgres", "valkey", "mongo")
_SETTINGS = {"valkey": {"appendonly": "yes", "appendfsync": "everysec"}}


class Stores:
    """Servers that are started once and serve empty stores until the run is over."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._servers: dict[str, servers.Server] = {}

    @contextmanager
    def empty(self, name: str) -> Iterator[str]:
        """The address of an empty store."""
        match name:
            case "memory":
                yield "memory://"
            case "sqlite":
                with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
                    yield f"sqlite:///{folder}/jobs.db"
            case _:
                yield self._server(name).fresh()

    def _server(self, name: str) -> servers.Server:
        if name not in self._servers:
            durable = servers.start(name, durable=True, settings=_SETTINGS.get(name))
            self._servers[name] = self._stack.enter_context(durable)
        return self._servers[name]
