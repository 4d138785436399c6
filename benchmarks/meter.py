"""What a measurement costs: wall clock, and CPU time of this process and of the store's server.

The server's CPU time is that of its whole process tree. Where the system does not tell it, it is None.
"""

import os
import resource
import time
from pathlib import Path

import servers

SERVER = "server"  # the file of a place that names the process id of the server behind it
# Fields of /proc/PID/stat, counted after the program's name: user and system time of the process and of its ended children.
_CPU_FIELDS = slice(11, 15)


class Meter:
    """Measures from `start` to `stop`; `place` says which server to count."""

    def __init__(self, place: Path) -> None:
        self._server = _server_of(place)
        self._began = self._own = 0.0
        self._served: float | None = None
        self.seconds = 0.0
        self.cpu: float | None = None
        self.server_cpu: float | None = None

    def start(self) -> None:
        self._served = _cpu_of_tree(self._server)
        self._own = _own_cpu()
        self._began = time.perf_counter()

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu = _own_cpu() - self._own
        served = _cpu_of_tree(self._server)
        self.server_cpu = None if served is None or self._served is None else served - self._served

    def account(self) -> dict[str, float | None]:
        return {"cpu": self.cpu, "server_cpu": self.server_cpu}


def note_server(place: Path, server: servers.Server) -> None:
    """Let the meters of this place count that server. One that the user already had may be on another machine."""
    if server.process is not None:
        (place / SERVER).write_text(str(server.process.pid))


def _server_of(place: Path) -> int | None:
    file = place / SERVER
    return int(file.read_text()) if file.exists() else None


def _own_cpu() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _cpu_of_tree(pid: int | None) -> float | None:
    """Seconds of CPU time of a process and of all that it started; None where the system does not tell."""
    try:
        return None if pid is None else _ticks_of_tree(pid) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return None


def _ticks_of_tree(pid: int) -> int:
    """A child's time passes to its parent when it has ended. It is read again if that happens in between: PostgreSQL has a
    process for each connection, and those end just when a measurement does."""
    while True:
        before = _ticks(pid)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        try:
            running = sum(_ticks_of_tree(int(child)) for child in children)
        except OSError:  # a child has ended
            continue
        after = _ticks(pid)
        if after[1] == before[1]:
            return sum(after) + running


def _ticks(pid: int) -> tuple[int, int]:
    """CPU time of a process itself, and of its children that have ended."""
    user, system, *ended = map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_CPU_FIELDS])
    return user + system, sum(ended)
