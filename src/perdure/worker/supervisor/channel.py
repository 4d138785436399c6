"""The line between a supervisor and a runner: a socket on which both say short words, one JSON text a line.

    supervisor → runner     options (first of all) · go · quiet · leave · stop · hurry
    runner → supervisor     hello (it is ready to go; where its store is) · working · flushed · leaves · condition

The end of the line means that the other side is gone.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

LONGEST = 1 << 20

Word = dict[str, Any]


class Channel:
    """One end of the line."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    def first(self) -> Word:
        """The first word, waited for before there is a loop. An empty one: the other side is gone."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._end.recv(1)
            if not byte:
                return {}
            line += byte
        word: Word = json.loads(line)
        return word

    def say_first(self, word: Word) -> None:
        """Say a word before there is a loop."""
        self._end.sendall(_line(word))

    async def listen(self, heard: Callable[[Word], None], ended: Callable[[], None]) -> None:
        """Call `heard` with every word from now on, and `ended` when the other side is gone."""
        reader, self._writer = await asyncio.open_connection(sock=self._end, limit=LONGEST)
        self._listening = asyncio.create_task(self._listen(reader, heard, ended), name="perdure link")

    def say(self, word: Word) -> None:
        """Say a word; to nobody if the other side is gone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_line(word))

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        self._end.close()

    async def _listen(
        self, reader: asyncio.StreamReader, heard: Callable[[Word], None], ended: Callable[[], None]
    ) -> None:
        try:
            while line := await reader.readline():
                heard(json.loads(line))
        except OSError:
            pass
        ended()


def _line(word: Word) -> bytes:
    return json.dumps(word).encode() + b"\n"
