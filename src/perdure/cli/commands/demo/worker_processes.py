"""Real worker processes for the demo: started, killed, stopped, and never left behind."""

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
        """`perdure worker`, in one process of its own: with a supervisor it would not be silent when it is killed."""
        options = ["--no-supervisor", "--name", name, "--concurrency", str(SLOTS), "--poll", "0.5", "--grace", "5"]
        command = [sys.executable, "-m", "perdure", "worker", "perdure.cli.commands.demo.tasks:app", *options]
        environment = {**os.environ, WORKER: name}
        with self.log_of(name).open("wb") as log:
            self._workers[name] = Popen(command, stdin=DEVNULL, stdout=log, stderr=STDOUT, env=environment)

    def kill(self, name: str) -> None:
        """kill -9: no goodbye, nothing handed back."""
        worker = self._workers.pop(name)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()

    def check(self) -> None:
        """A worker that ended by itself is a failure of the demo."""
        for name, worker in self._workers.items():
            if worker.poll() is not None:
                raise WorkerEnded(f"{name} ended with exit code {worker.returncode}: {self._last_words(name)}")

    async def stop(self) -> dict[str, int]:
        """SIGTERM to all, and their exit codes; who does not obey in time is killed."""
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
        """Kill what is left. For the way out."""
        workers, self._workers = self._workers, {}
        _kill_all(workers)

    def log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        written = self.log_of(name).read_text(errors="replace").strip()
        return written.splitlines()[-1] if written else "it said nothing"


class WorkerEnded(Exception):
    """A worker process stopped without being told to."""


def _kill_all(workers: dict[str, Popen[bytes]]) -> None:
    for worker in workers.values():
        if worker.poll() is None:
            worker.kill()
        worker.wait()
