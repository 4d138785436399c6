"""A program with handlers that do everything a handler must not do, and `perdure worker` processes that run it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import perdure
from perdure import Job, Perdure

SOURCE = Path(perdure.__file__).parents[1]
PROGRAM = '''
import asyncio, ctypes, os, re, signal, sys, time
from perdure import Backoff, Context, Perdure, Retry, Skip, Snooze

app = Perdure({url!r}, backoff=Backoff.fixed(0.01), max_attempts=5, lease=1.5)
generation = {generation}


def note(ctx, what="began"):
    """One line in one write: what, job, attempt, process, when."""
    line = f"{{what}} {{ctx.job.id}} {{ctx.job.attempt}} {{os.getpid()}} {{time.time()}} {{ctx.worker}}\\n"
    journal = os.open({journal!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, line.encode())
    os.close(journal)


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
def version(ctx: Context) -> int:
    note(ctx)
    return generation


@app.task
def dies(ctx: Context, how: str, times: int = 1) -> str:
    note(ctx)
    if ctx.job.attempt <= times:
        print("last words of attempt", ctx.job.attempt, file=sys.stderr, flush=True)
        if how == "wait":
            time.sleep(60)
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "memory":  # as the kernel does it
            wasted = b"x" * (64 << 20)
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "segfault":
            ctypes.string_at(0)
        elif how == "exit":
            os._exit(3)
        elif how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)
    return "done"


@app.task(timeout=1.0)
async def overruns(ctx: Context, how: str) -> str:
    note(ctx)
    if ctx.job.attempt == 1:
        if how == "sleep":
            time.sleep(60)
        elif how == "gil":
            re.match(r"(a+)+$", "a" * 60 + "b")
        elif how == "swallow":
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
    return "done"


@app.task(timeout=1.0)
def ignores(ctx: Context) -> str:
    note(ctx)
    if ctx.job.attempt == 1:
        time.sleep(60)
    return "done"


@app.task
async def waits(ctx: Context, path: str) -> str:
    """Until there is a file."""
    note(ctx)
    while not os.path.exists(path):
        await asyncio.sleep(0.02)
    return "done"


@app.task(run_in="thread")
def blocks_for(ctx: Context, seconds: float) -> str:
    """Holds the interpreter's lock, one bit at a time."""
    note(ctx)
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return "done"
'''


FAR_AWAY = '''

@app.task(run_in="process")
def far_away(ctx: Context, path: str) -> str:
    """In a child, until there is a file."""
    note(ctx)
    while not os.path.exists(path):
        time.sleep(0.02)
    return "done"
'''


class Line:
    """A line of the journal."""

    def __init__(self, text: str) -> None:
        self.what, self.job, attempt, pid, at, self.worker = text.split()
        self.attempt, self.pid, self.at = int(attempt), int(pid), float(at)


class Plant:
    """The program on a store, its workers, and the journal of what was begun."""

    def __init__(self, folder: Path, url: str, more: str = "") -> None:
        self.folder = folder
        self._more = more
        self.url = url
        self.journal = folder / "journal"
        self.written = folder / "stderr"
        self.names: dict = {"__name__": "plant"}
        exec(self.write(1), self.names)
        self.app: Perdure = self.names["app"]
        self.workers: list[subprocess.Popen[bytes]] = []

    def write(self, generation: int) -> str:
        text = PROGRAM.format(url=self.url, journal=str(self.journal), generation=generation) + self._more
        (self.folder / "plant.py").write_text(text)
        return text

    async def enqueue(self, task: str, *arguments: object) -> str:
        return str((await self.names[task].enqueue(*arguments)).id)

    async def ended(self, id: str, within: float = 60) -> Job:
        deadline = time.monotonic() + within
        while True:
            job = await self.app.jobs.get(id)
            if job is not None and job.finished_at is not None:
                return job
            assert time.monotonic() < deadline, f"{job}\n{self.said()[-5000:]}"
            await asyncio.sleep(0.05)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with self.written.open("ab") as errors:
            worker = subprocess.Popen(
                [sys.executable, "-m", "perdure", "worker", "plant:app", "--poll", "0.2", *options],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": f"{SOURCE}:{self.folder}", "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.workers.append(worker)
        return worker

    def lines(self, job: object = None, what: str = "began") -> list[Line]:
        if not self.journal.exists():
            return []
        lines = [Line(text) for text in self.journal.read_text().splitlines()]
        return [line for line in lines if line.what == what and job in (None, line.job)]

    def said(self) -> str:
        return self.written.read_text(errors="replace")

    def spare_ready(self) -> bool:
        """Whether a runner is ready beside the one at work."""
        said = self.said()
        gone = said.count(" it held ") + said.count(" has ended")
        started = said.count("started: pid")
        return said.count(" is ready\n") == started and started - gone >= 2

    def runners(self) -> list[int]:
        """The processes that the last worker has started."""
        children = Path(f"/proc/{self.workers[-1].pid}/task/{self.workers[-1].pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def stop(self, within: float = 60) -> list[int]:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                worker.send_signal(signal.SIGCONT)
        try:
            return [worker.wait(within) for worker in self.workers]
        finally:
            for worker in self.workers:
                worker.kill()
                worker.wait()


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is not only waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
