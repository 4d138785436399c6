"""The process beside a server: starts it when told to, ends it when nobody uses it any more, and clears up behind it.

Every user of a server holds the writing end of a named pipe, `users`. Its end of file is the word that the last user is
gone, however it went: closed, crashed or killed. A user who comes at that very moment holds the lock while it opens the
pipe, and the keeper looks again under the same lock: so nobody is handed a server that is about to end.

    keeper.py FOLDER LOCK SIGNAL

A line in the pipe is an order to start the server: its command as a JSON list. `FOLDER/pid` then holds its process id and,
once it has ended, `FOLDER/ended` its exit code. This file is run on its own and imports nothing of the project.
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

PATIENCE = 10.0


def main(folder: Path, lock: Path, signal: int) -> None:
    users = os.open(folder / "users", os.O_RDONLY | os.O_NONBLOCK)
    if os.fork():
        os._exit(0)  # the user need not wait for a child that outlives it
    keeper = Keeper(folder)
    while True:
        keeper.obey(users)
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if _deserted(users):
                keeper.end(signal)
                shutil.rmtree(folder, ignore_errors=True)
                return


def _deserted(users: int) -> bool:
    try:
        return os.read(users, 1) == b""
    except BlockingIOError:
        return False


class Keeper:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._watch = threading.Thread()

    def obey(self, users: int) -> None:
        """Until the last user is gone."""
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
        self._watch.join(PATIENCE)
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
        self._watch = threading.Thread(target=self._note_the_end, args=(self._server,), daemon=True)
        self._watch.start()
        self._write("pid", self._server.pid)

    def _note_the_end(self, server: "subprocess.Popen[bytes]") -> None:
        self._write("ended", server.wait())

    def _write(self, name: str, number: int) -> None:
        unfinished = self._folder / f".{name}"
        unfinished.write_text(str(number))
        unfinished.replace(self._folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
