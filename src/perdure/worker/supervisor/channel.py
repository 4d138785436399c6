"""The channel between a supervisor and a runner: a socket on which both send short messages, one JSON text per line.

    supervisor → runner     options (first of all) · go · quiet · leave · stop · hurry
    runner → supervisor     hello (it is ready to go; where its store is) · working · flushed · transactions · condition

The end of the stream means that the other process is gone.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

LONGEST = 1 << 20

ChannelMessage = dict[str, Any]


class Channel:
    """One end of the channel."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    def read_first(self) -> ChannelMessage:
        """Wait for the first message, before there is an event loop. It is empty if the other side is gone."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._end.recv(1)
            if not byte:
                return {}
            line += byte
        message: ChannelMessage = json.loads(line)
        return message

    def send_first(self, message: ChannelMessage) -> None:
        """Send a message before there is an event loop."""
        self._end.sendall(_line(message))

    async def listen(self, received: Callable[[ChannelMessage], None], ended: Callable[[], None]) -> None:
        """Call `received` with every message from now on, and `ended` when the other side is gone."""
        reader, self._writer = await asyncio.open_connection(sock=self._end, limit=LONGEST)
        self._listening = asyncio.create_task(self._listen(reader, received, ended), name="perdure link")

    def send(self, message: ChannelMessage) -> None:
        """Send a message, unless the other side is gone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_line(message))

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        self._end.close()

    async def _listen(
        self, reader: asyncio.StreamReader, received: Callable[[ChannelMessage], None], ended: Callable[[], None]
    ) -> None:
        try:
            while line := await reader.readline():
                received(json.loads(line))
        except OSError:
            pass
        ended()


def _line(message: ChannelMessage) -> bytes:
    return json.dumps(message).encode() + b"\n"
