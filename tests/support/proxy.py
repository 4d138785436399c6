"""A line to a server that can be cut, slow, go silent, or break right after a question was passed on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit


class Switchboard:
    """An event loop in a thread of its own, with a listening port: what stands between a client and a server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.target = (parts.hostname, parts.port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._door = self.do(asyncio.start_server(self._met, "127.0.0.1", 0))
        self.port = self._door.sockets[0].getsockname()[1]
        user = f"{parts.username}@" if parts.username else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, function: Callable[[], None]) -> None:
        async def run() -> None:
            function()

        self.do(run())

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._door.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.hang_up()
        await asyncio.sleep(0.01)  # what was aborted is closed in the next rounds of the loop

    def hang_up(self) -> None:
        """End what is left when nobody talks any more."""

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class Proxy(Switchboard):
    """Passes bytes on, both ways, unless told otherwise."""

    def __init__(self, url: str) -> None:
        self._lines: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._swallows = False
        self._refuses = False
        self._breaks_after = 0
        self._muted: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._delay = 0.0
        self.called = 0  # who has called
        self.opened = 0  # and was let through
        self.kept = 0  # parts that were not passed on
        super().__init__(url)

    def cut(self) -> None:
        """Cut every line."""
        self.call(self._cut)

    def swallow(self, yes: bool) -> None:
        """Take everything and pass nothing on, on lines that exist and on new ones."""
        self._swallows = yes

    def mute(self) -> None:
        """Let the lines of now stand and pass nothing on, for good: as behind a firewall that has forgotten them."""
        self.call(lambda: self._muted.update(self._lines))

    def delay(self, seconds: float) -> None:
        """Pass everything on so much later."""
        self._delay = seconds

    def refuse(self, yes: bool) -> None:
        """Hang up on whoever calls, and on all who talk."""
        self._refuses = yes
        if yes:
            self.cut()

    def break_after_questions(self, count: int) -> None:
        """The next so many questions are passed on, and their lines are cut before the answer comes back."""
        self._breaks_after = count

    @property
    def lines(self) -> int:
        return len(self._lines)

    def _cut(self) -> None:
        for line in list(self._lines):
            for end in line:
                end.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.called += 1
        if self._refuses:
            return
        self.opened += 1
        from_server, to_server = await asyncio.open_connection(*self.target)
        line = (writer, to_server)
        self._lines.add(line)
        try:
            passing = [self._pass(line, reader, to_server), self._pass(line, from_server, writer)]
            tasks = [asyncio.ensure_future(each) for each in passing]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._lines.discard(line)
            self._muted.discard(line)
            to_server.transport.abort()

    async def _pass(
        self,
        line: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
    ) -> None:
        answers = sink is line[0]
        while heard := await source.read(65536):
            if self._delay:
                await asyncio.sleep(self._delay)
            if self._swallows or line in self._muted:
                self.kept += 1
                continue
            if answers and self._breaks_after and heard[:1] not in b"RSN":  # not in the middle of a greeting
                self._breaks_after -= 1
                return
            sink.write(heard)
            await sink.drain()
