"""The process beside a server: it starts the server on request, stops it after its last user, and removes its folder.

Every user of a server holds the writing end of a named pipe, `users`. End of file means that the last user is gone: it
closed the pipe, crashed or was killed. A new user opens the pipe under a lock, and the keeper checks the pipe again under
the same lock before it stops the server. So no user gets a server that is about to stop.

    keeper.py FOLDER LOCK SIGNAL

A line in the pipe is a request to start the server: its command as a JSON list. `FOLDER/pid` then contains its process id
and, when it has ended, `FOLDER/ended` its exit code. This file runs on its own and imports nothing of the project.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path

STOP_WITHIN = 10.0


def main(folder: Path, lock: Path, signal: int) -> None:
    users = os.open(folder / "users", os.O_RDONLY | os.O_NONBLOCK)
    if os.fork():
        os._exit(0)  # so that the user need not wait for this child
    keeper = Keeper(folder)
    while True:
        keeper.serve(users)
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if _has_no_users(users):
                keeper.end(signal)
                shutil.rmtree(folder, ignore_errors=True)
                return


def _has_no_users(users: int) -> bool:
    try:
        return os.read(users, 1) == b""
    except BlockingIOError:
        return False


class Keeper:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._watch = threading.Thread()

    def serve(self, users: int) -> None:
        """Handle requests until the last user is gone."""
        waiting = select.poll()
        waiting.register(users, select.POLLIN)
        while True:
            waiting.poll()
            try:
                order = os.read(users, 4096)
            except BlockingIOError:
                continue
            if not order:
                return
            self._start(json.loads(order))

    def end(self, signal: int) -> None:
        if self._server is None:
            return
        self._server.send_signal(signal)
        self._watch.join(STOP_WITHIN)
        if self._watch.is_alive():
            self._server.kill()
            self._watch.join()

    def _start(self, command: list[str]) -> None:
        if self._server is not None:
            self._watch.join()
        (self._folder / "ended").unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
            )
        self._watch = threading.Thread(target=self._write_exit_code, args=(self._server,), daemon=True)
        self._watch.start()
        self._write("pid", self._server.pid)

    def _write_exit_code(self, server: "subprocess.Popen[bytes]") -> None:
        self._write("ended", server.wait())

    def _write(self, name: str, number: int) -> None:
        unfinished = self._folder / f".{name}"
        unfinished.write_text(str(number))
        unfinished.replace(self._folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
