"""The worker processes of a campaign: `perdure worker` as it is run in production, with and without a supervisor, to be
killed and frozen."""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import wait_until

from ..crashes.nursery import PACKAGES, ROOT

URL, FOLDER = "PERDURE_KILLS_URL", "PERDURE_KILLS_FOLDER"
CONCURRENCY = 6
GRACE = 5
TO_END = GRACE + 40  # seconds after SIGTERM; a busy machine is slow


class WorkerProcess:
    """One `perdure worker` with all its runners."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, *, supervised: bool) -> None:
        self._process = process
        self.name = name
        self.supervised = supervised
        self.frozen = False

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def runners(self) -> list[int]:
        try:
            return [int(pid) for pid in _file_of(self._process.pid, "children").read_text().split()]
        except FileNotFoundError:
            return []

    def pids(self) -> list[int]:
        """Its processes; the children too if their parent has ended without them."""
        return [self._process.pid, *self.runners()] if self.exit_code is None else []

    def runs(self, worker: str | None) -> bool:
        """Whether a hold of this worker name is its own: runners add a suffix to the name."""
        return worker is not None and (worker == self.name or worker.startswith(f"{self.name}."))

    def freeze(self) -> None:
        """Stop all its processes, and wait until they stand still.

        A process in state D runs no code either. A supervisor stays in it when its new runner was stopped between
        vfork and exec: the kernel holds the parent until the child goes on.
        """
        pids = self.pids()
        _send(pids, signal.SIGSTOP)
        wait_until(lambda: all(_state(pid) in ("T", "Z", "D", "") for pid in pids))
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        _send(reversed(self.pids()), signal.SIGCONT)

    def kill(self) -> None:
        _send(self.pids(), signal.SIGKILL)
        self._process.wait()

    def kill_supervisor(self) -> list[int]:
        """Kill the supervisor alone: its runners see that, finish what they have, and end. Gives handles of them."""
        runners = self.runners()
        handles = [os.pidfd_open(pid) for pid in runners]
        _send([self._process.pid], signal.SIGKILL)
        self._process.wait()
        _send(runners, signal.SIGCONT)
        return handles

    def kill_runner(self, chance: random.Random) -> bool:
        runners = self.runners()
        if runners:
            _send([chance.choice(runners)], signal.SIGKILL)
        self.thaw()
        return bool(runners)

    def ask_to_end(self) -> None:
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float) -> int | None:
        """Its exit code; None if it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None


class Workers:
    """The workers that live now. One in three runs without a supervisor."""

    def __init__(self, folder: Path, url: str, size: int) -> None:
        self._output = folder / "workers.log"
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(PACKAGES)]),
            URL: url,
            FOLDER: str(folder),
        }
        self._started = 0
        self.ended_alone: list[str] = []
        self.orphans: list[int] = []  # handles of runners whose supervisor was killed
        self.living: list[WorkerProcess] = []
        for _ in range(size):
            self.start()

    def start(self) -> WorkerProcess:
        self._started += 1
        name, supervised = f"worker-{self._started}", self._started % 3 != 0
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "perdure", "worker", "tests.system.kills.worker_app:app", "--name", name),
                    *("--concurrency", str(CONCURRENCY), "--poll", "0.2", "--grace", str(GRACE)),
                    *(() if supervised else ("--no-supervisor",)),
                ],
                cwd=ROOT,
                env=self._environment,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,
            )
        self.living.append(WorkerProcess(process, name, supervised=supervised))
        return self.living[-1]

    def replace(self, worker: WorkerProcess) -> None:
        self.living.remove(worker)
        self.start()

    def replace_ended(self) -> None:
        """No worker may end that was not killed: name those that did, and go on with others."""
        for worker in list(self.living):
            if worker.exit_code is not None:
                self.ended_alone.append(f"{worker.name} ended by itself with exit code {worker.exit_code}")
                self.replace(worker)

    def kill_all(self) -> None:
        for worker in self.living:
            worker.kill()

    def end(self) -> list[str]:
        """Ask all to end. What went wrong with that."""
        for worker in self.living:
            worker.ask_to_end()
        deadline = time.monotonic() + TO_END
        codes = {worker.name: worker.wait(max(0.1, deadline - time.monotonic())) for worker in self.living}
        outlived = self._end_orphans(deadline)
        self.kill_all()
        return outlived + [
            f"{name} did not end within {TO_END} s of SIGTERM" if code is None else f"{name} ended with {code}"
            for name, code in codes.items()
            if code != 0
        ]

    def log(self) -> str:
        return self._output.read_text(errors="replace")

    def _end_orphans(self, deadline: float) -> list[str]:
        left = 0
        for handle in self.orphans:
            ended, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            if not ended:
                left += 1
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self.orphans.clear()
        return [f"{left} runners outlived their killed supervisor"] if left else []


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a campaign that is killed leaves nobody behind


def _file_of(pid: int, name: str) -> Path:
    return Path(f"/proc/{pid}/task/{pid}/{name}")


def _state(pid: int) -> str:
    try:
        return _file_of(pid, "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
