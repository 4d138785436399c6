"""Closes the sockets that pymongo forgets, without a warning.

pymongo drops the socket when a task is cancelled while it connects: its monitors are, whenever a client is closed while the
server does not answer. The garbage collector finds that socket at any time, inside any test, and its ResourceWarning fails
that test. A socket that pymongo made for an event loop therefore closes itself here. All other warnings stay: a socket that
became a connection belongs to a transport of asyncio, which still warns if nobody closes it, and so do sockets of
blocking clients and our own.
"""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any


class SelfClosingSocket(socket.socket):
    def __del__(self) -> None:
        self.close()


def _socket_of_driver(*arguments: Any, **options: Any) -> socket.socket:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return socket.socket(*arguments, **options)
    return SelfClosingSocket(*arguments, **options)


def pytest_configure() -> None:
    try:
        from pymongo import pool_shared
    except ImportError:
        return
    pool_shared.socket = SimpleNamespace(**vars(socket) | {"socket": _socket_of_driver})
