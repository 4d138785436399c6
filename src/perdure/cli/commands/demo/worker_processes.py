"""Start, kill and stop the demo's worker processes, and leave none behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

from .end_with_parent import WORKER

SLOTS = 10
STOP_WITHIN = 10.0


class Fleet:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[str, Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start `perdure worker` without a supervisor, which would report the jobs of a killed runner."""
        options = ["--no-supervisor", "--name", name, "--concurrency", str(SLOTS), "--poll", "0.5", "--grace", "5"]
        command = [sys.executable, "-m", "perdure", "worker", "perdure.cli.commands.demo.tasks:app", *options]
        environment = {**os.environ, WORKER: name}
        with self.log_of(name).open("wb") as log:
            self._workers[name] = Popen(command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=environment)

    def kill(self, name: str) -> None:
        """Kill a worker with SIGKILL. It hands nothing back."""
        worker = self._workers.pop(name)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()

    def check(self) -> None:
        """Raise if a worker ended by itself."""
        for name, worker in self._workers.items():
            if worker.poll() is not None:
                raise WorkerEnded(f"{name} ended with exit code {worker.returncode}: {self._last_log_line(name)}")

    async def stop(self) -> dict[str, int]:
        """Send SIGTERM to all and return their exit codes. Kill those that do not stop in time."""
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.terminate()
        try:
            async with asyncio.timeout(STOP_WITHIN):
                while any(worker.poll() is None for worker in workers.values()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        finally:
            _kill_all(workers)
        return {name: worker.returncode for name, worker in workers.items()}

    def abandon(self) -> None:
        """Kill all workers that are left."""
        workers, self._workers = self._workers, {}
        _kill_all(workers)

    def log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_log_line(self, name: str) -> str:
        written = self.log_of(name).read_text(errors="replace").strip()
        return written.splitlines()[-1] if written else "its log is empty"


class WorkerEnded(Exception):
    """A worker process ended by itself."""


def _kill_all(workers: dict[str, Popen[bytes]]) -> None:
    for worker in workers.values():
        if worker.poll() is None:
            worker.kill()
        worker.wait()
