"""A shop with a store in a temporary folder, and two ways to call the command line: in this process, and really."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.root import perdure

SOURCE = Path(__file__).resolve().parents[2] / "src"
SHOP = """
import asyncio, time
from perdure import Backoff, Context, Perdure

app = Perdure(URL, backoff=Backoff.fixed(0.02), max_attempts=2)
same = app
number = 7

@app.task
async def add(a: int, b: int) -> int:
    return a + b

@app.task(queue="mail")
async def send(ctx: Context, to: str) -> str:
    await ctx.log(f"sent to {to}")
    return "sent"

@app.task
async def broken() -> None:
    raise RuntimeError("this never works \\x1b[31m")

@app.task
def slow(path: str, seconds: float) -> None:
    open(path, "w").write("began")
    time.sleep(seconds)
    open(path, "w").write("ended")

@app.task
async def forever(path: str) -> None:
    open(path, "w").write("began")
    await asyncio.sleep(3600)
"""


class Shop:
    """A folder with shop.py and shop.db, and the command line on its store; or on the store at another address."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'shop.db'}"
        self.source = SHOP.replace("URL", repr(self.url))
        (folder / "shop.py").write_text(self.source)
        self.names: dict = {"__name__": "shop"}
        exec(self.source, self.names)
        self.app = self.names["app"]

    def perdure(self, *arguments: str):
        """The command in this process."""
        return CliRunner().invoke(perdure, list(arguments), env={"PERDURE_URL": self.url})

    def json(self, *arguments: str):
        """What the command prints with --json, which must be all of stdout."""
        done = self.perdure(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def process(self, *arguments: str, **options):
        return subprocess.Popen(
            [sys.executable, "-m", "perdure", *arguments],
            cwd=self.folder,
            env=environment(PERDURE_URL=self.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str, timeout: float = 30):
        """The command in a process of its own: exit code, stdout, stderr."""
        process = self.process(*arguments, stdin=subprocess.DEVNULL)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process.returncode, out, err

    def fill(self, *, work: bool = False) -> dict[str, str]:
        """Put four jobs on record and give their ids; with `work`, run what is due."""
        return asyncio.run(self._fill(work))

    async def _fill(self, work: bool) -> dict[str, str]:
        send = self.names["send"]
        async with self.app:
            handles = {
                "add": await self.names["add"].enqueue(1, 2),
                "send": await send.using(tenant="acme/main", key="k", tags=["t"]).enqueue("a@b.c"),
                "later": await send.using(delay=3600, routing_key="vector").enqueue("later@b.c"),
                "broken": await self.names["broken"].enqueue(),
            }
            if work:
                async with self.app.worker(concurrency=4, poll=0.05):
                    for name in ("add", "send", "broken"):
                        async for _ in handles[name].watch(timeout=20):
                            pass
        return {name: str(handle.id) for name, handle in handles.items()}

    def enqueue(self, name: str, *arguments) -> str:
        async def enqueue():
            async with self.app:
                return str((await self.names[name].enqueue(*arguments)).id)

        return asyncio.run(enqueue())


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1", **extra}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield Shop(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("shop"):
            del sys.modules[name]
